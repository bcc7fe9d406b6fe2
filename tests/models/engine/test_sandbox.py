"""A hostile template ends itself only, and soon."""

import subprocess
import sys
import time
from datetime import datetime

import pytest

from corosrv.base.errors import Refused
from corosrv.models.engine import sandbox
from corosrv.models.engine.chat import ChatTemplate
from corosrv.models.engine.marks import Piece
from corosrv.models.engine.sandbox import TemplateLimits
from tests.support.processor_time import least_seconds
from tests.support.templates import CHATML, conversation, render, template

NINES = "999999999"


def grow(step: str, first: str = "'x'") -> str:
    """A template in which n.s becomes `step` again and again, and is printed."""
    loop = "{% for a in range(99) %}{% set n.s = " + step + " %}{% endfor %}"
    return "{% set n = namespace(s=" + first + ") %}" + loop + "{{ n.s }}"


HOSTILE = {
    "nested loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "a huge range": "{% for a in range(10000000000) %}{% endfor %}",
    "endless output": "{% for a in range(90000) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "much output": "{% set s = 'x' ~ '" + "x" * 1000 + "' %}{% for a in range(90000) %}{{ s }}{% endfor %}",
    "doubling by ~": grow("n.s ~ n.s"),
    "doubling by +": grow("n.s + n.s"),
    "doubling lists": grow("n.s + n.s", first="[1]"),
    "doubling by join": grow("[n.s, n.s]|join"),
    "doubling by join()": grow("''.join([n.s, n.s])"),
    "squaring by replace": grow("n.s|replace('x', n.s)", first="'xx'"),
    "squaring by replace()": grow("n.s.replace('x', n.s)", first="'xx'"),
    "doubling by format": grow("'%s%s'|format(n.s, n.s)"),
    "doubling by %": grow("'%s%s' % (n.s, n.s)"),
    "doubling by format()": grow("'{0}{0}'.format(n.s)"),
    "doubling by a macro": "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}" + grow("m(n.s)"),
    "doubling by a block": grow("n.s %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t"),
    "* of a string": "{{ 'x' * 999999999 }}",
    "* of a list": "{{ [1] * 999999999 }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a width by %": f"{{{{ '%{NINES}d' % 1 }}}}",
    "a width by format": f"{{{{ '%{NINES}d'|format(1) }}}}",
    "a width by format()": "{{ '{:" + NINES + "}'.format(1) }}",
    "center": f"{{{{ 'x'|center({NINES}) }}}}",
    "center()": f"{{{{ 'x'.center({NINES}) }}}}",
    "ljust()": f"{{{{ 'x'.ljust({NINES}) }}}}",
    "zfill()": f"{{{{ 'x'.zfill({NINES}) }}}}",
    "expandtabs()": "{{ '\t'.expandtabs(" + NINES + ") }}",
    "indent": f"{{{{ 'x\ny'|indent({NINES}) }}}}",
    "tojson(indent)": f"{{{{ [1]|tojson(indent={NINES}) }}}}",
    "batch": f"{{{{ [1]|batch({NINES}, 'x')|list }}}}",
    "slice": f"{{{{ [1]|slice({NINES})|list }}}}",
    "round to many digits": f"{{{{ 1.5|round({NINES}, 'ceil') }}}}",
    "round to many digits by name": f"{{{{ 1.5|round(method='ceil', precision={NINES}) }}}}",
    "round before the point": f"{{{{ 15|round(-{NINES}) }}}}",
    "to_bytes()": "{{ (1).to_bytes(3000000000, 'big') }}",
    "encode()": "{{ 'x'.encode('utf-32') }}",
    "format_map()": "{{ '{a}'.format_map(dict(a=1)) }}",
    "a long path": "{{ [1]|map(attribute='a" + ".a" * 100_000 + "')|list }}",
    "a path that grows": grow("n.s ~ n.s", first="'a.a'").replace("range(99)", "range(20)").replace(
        "{{ n.s }}", "{{ messages|map(attribute=n.s)|list }}"),
    "a path that grows to select": grow("n.s ~ n.s", first="'a.a'").replace("range(99)", "range(20)").replace(
        "{{ n.s }}", "{{ messages|selectattr(n.s)|list }}"),
    "a long template": "{{ 1 }}" * 300_000,
    "many tokens": "{{1}}" * 50_000,
    "many widths": grow("n.s ~ n.s", first="'{0:9999}'").replace("range(99)", "range(15)").replace(
        "{{ n.s }}", "{{ n.s.format(1) }}"),
    "many widths by %": grow("n.s ~ n.s", first="'%9999d'").replace("range(99)", "range(9)").replace(
        "{{ n.s }}", "{{ n.s % 1 }}") + "{{ ('%9999d' * 2) }}",
    "long numbers by format": grow("n.s ~ n.s", first="'{0:f}'").replace("range(99)", "range(20)").replace(
        "{{ n.s }}", "{{ n.s.format(1e308) }}"),
    "indenting other lines": grow("n.s ~ n.s", first="'\\r'").replace("range(99)", "range(20)").replace(
        "{{ n.s }}", "{{ n.s|indent(999999) }}"),
    "tojson(indent) deep": grow("[n.s]", first="range(9999)|list").replace("{{ n.s }}", "{{ n.s|tojson(indent=16) }}"),
    "many pieces": grow("n.s ~ n.s", first="'ab '").replace("range(99)", "range(21)").replace(
        "{{ n.s }}", "{{ n.s.split() }}"),
    "many copies": "{% set s %}" + "x" * 90_000 + "{% endset %}{% set n = namespace(l=[]) %}"
    "{% set s = s ~ s ~ s ~ s ~ s ~ s ~ s ~ s ~ s %}" + "".join(f"{{% set s{i} = s[1:] %}}" for i in range(900)),
    "join() of an iterator": "{% set s %}" + "x" * 90_000 + "{% endset %}{{ ''.join(range(99999)|map(attribute='x', "
    "default=s)) }}",
    "sorting what repeats": "{% set s %}" + "x" * 90_000 + "{% endset %}{{ range(99999)|map(attribute='x', default=s)"
    "|sort|length }}",
    "a large number": "{% set n = namespace(s=0x" + "f" * 99_999 + ") %}{{ n.s // 3 }}",
    "doubling a number": grow("n.s + n.s", first="1").replace("range(99)", "range(9999)"),
    "a long date": "{{ strftime_now('%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c%c"
    "%c%c%c%c%c%c%c%c%c%c%c%c%c%c') }}",
    "chains of filters": ("{{'x'" + "|replace('x','xx')" * 22 + "}}") * 100,
    "lipsum": "{{ lipsum(90000) }}",
    "a sum of lists": "{{ [[1], [2]]|sum(start=[]) }}",
    "nested lists": grow("[n.s, n.s]", first="[1]"),
    "nested dicts": grow("dict(a=n.s, b=n.s)", first="1"),
    "nested namespaces": grow("namespace(a=n.s, b=n.s)", first="1"),
    "a text in a block": "{% set s %}{% for a in range(99999) %}" + "x" * 10_000 + "{% endfor %}{% endset %}",
    "another counter": "{% set counted = range %}{% set _counted = range %}"
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "endless macros": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros that branch": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a long sum": "{{ range(99999)|sum }}" * 400,
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a class by attr": "{{ (''|attr('__class__')).__mro__ }}",
    "a class by format": "{{ '{0.__class__.__mro__}'.format('') }}{{ 1 / 0 }}",
    "globals of lipsum": "{{ lipsum.__globals__['os'].popen('true').read() }}",
    "self": "{{ self.__init__.__globals__ }}",
    "the counter": "{{ _counted.__self__._limits }}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update({'content': 'x'}) }}",
    "an import": "{% import 'os' as os %}",
    "an include": "{% include '/etc/passwd' %}",
    "a division by zero": "{{ 1 // 0 }}",
    "a wrong type": "{{ messages[0].content + 5 }}",
    "a missing key": "{{ messages[0].nothing.more }}",
    "a bad date": "{{ strftime_now(5) }}",
    "a number of many digits": "{{ 1e308 * 1e308 | int }}",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_refused_quickly(source):
    def refused() -> None:
        with pytest.raises(Refused, match="template") as refused:
            render(source)
        assert refused.value.code == "invalid_template"

    assert least_seconds(refused, 6) < 6  # reading it, with a look at what it can do, and one rendering: 0.1 to 1.6


@pytest.mark.parametrize("source", ["{{ raise_exception.__globals__ }}", "{{ ''.__class__ }}", "{{ messages.append }}"])
def test_what_is_private_or_changes_things_is_nothing(source):
    assert render(source) == ""


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% for %}", "{% nothing %}", "{{ x | nothing }}", "{%" * 1000])
def test_a_template_that_is_none_is_refused_when_it_is_read(source):
    with pytest.raises(Refused, match="cannot be used"):
        template(source)


def test_the_words_of_an_error_are_cut():
    with pytest.raises(Refused) as refused:
        render("{{ raise_exception('x' ~ '" + "x" * 100_000 + "') }}")

    assert len(str(refused.value)) < 1200


def test_a_hostile_template_uses_little_memory():
    """All of them, in a process whose address space ends soon after what it has at its start."""
    program = (
        "import resource\nfrom tests.models.engine.test_sandbox import HOSTILE\n"
        "from tests.support.templates import render\nfrom corosrv.base.errors import Refused\nrender('{{ 1 }}')\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + 768 * 1024 * 1024\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "for name, source in HOSTILE.items():\n"
        "    try:\n        render(source)\n        print(name, 'renders')\n"
        "    except Refused as error:\n"
        "        print(name, 'runs out') if isinstance(error.__cause__, MemoryError) else None\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)

    assert (ran.returncode, ran.stdout) == (0, "")


def test_a_pause_of_the_machine_is_not_the_template_s_doing(monkeypatch):
    class SlowCalendar:
        @staticmethod
        def now():
            time.sleep(0.3)  # longer than a template may compute
            return datetime(2026, 1, 1)

    years = template("{% for m in messages %}{{ strftime_now('%Y') }}{% endfor %}")
    monkeypatch.setattr(sandbox, "datetime", SlowCalendar)

    assert years.render(conversation("a", "b")) == [Piece("20262026", is_text=False)]


def test_a_template_that_computes_for_too_long_is_refused():
    loops = "{% for a in range(90000) %}{% endfor %}"
    hasty = ChatTemplate(loops, (), {}, TemplateLimits(seconds=0.001))

    with pytest.raises(Refused, match="processor time"):
        hasty.render(conversation("x"))


def test_a_refused_rendering_leaves_the_template_usable():
    loops = "{% for a in range(99999) %}{% for b in range(9) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'x' %}" + loops + "{% endif %}ok"
    used = template(source)
    with pytest.raises(Refused):
        used.render(conversation("x"))

    assert used.render(conversation("y")) == [Piece("ok", is_text=False)]


def test_a_long_conversation_is_within_the_limits():
    assert len(render(CHATML, *["word " * 2000] * 500)) > 5_000_000
