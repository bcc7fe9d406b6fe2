"""The words of the code: what a class, a function or a parameter must not be called, and how no docstring begins.

Only what a program can tell is held here. The allowances are for packages that still have such words: lower a number
when you mend one, never raise it.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "corosrv"

# The public class names that two modules share, each because both sides of a protocol name the same thing so.
SHARED_CLASSES = {
    "CalledFunction",  # OpenAI's: in the body of a request and in its answer
    "Message",  # OpenAI's and Anthropic's
    "NamedTool",  # a `tool_choice` of OpenAI's chats and of its responses
    "Reader",  # the contract in corosrv.contracts.jobs, and what fulfils it in corosrv.models.engine
    "Tool",  # OpenAI's two and Anthropic's
}

# Participles, prepositions and the like: they hide what a thing is.
BARE_WORDS = """
    about alone apart asked begun behind beside bare by chosen counted described drawn due ended found given got heard
    held here inside kept kin known lent listed made meant named of offered on one others outside owed plain
    rest said seen sent shown since spent spoken started taken then there those told unsaid until upon wanted
    what which who whole within without written
"""
BARE_NAMES = frozenset(BARE_WORDS.split())
BARE_NAMES_ALLOWED: dict[str, int] = {}

# A docstring that begins with one of these is a fragment, or a sentence that does not say what the thing does.
FIRST_WORDS = """
    After Also Amid As At Because Before Behind Beside But By Else For From How If In Its Never Nobody None Not Nothing
    Of On Once Only Or Since So Such Than That Then Those Till To Twice Unless Until Upon What Whatever When Where
    Whether Which Who Whoever Whom Whose With Within Without
"""
FRAGMENT_WORDS = frozenset(FIRST_WORDS.split())
FRAGMENTS_ALLOWED: dict[str, int] = {}

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)
Documented = (ast.Module, ast.ClassDef, *Functions)


def public_classes(tree: ast.Module) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_"}


def bare_names(tree: ast.Module) -> Iterator[str]:
    """Yields the name of each class, function and parameter that is nothing but a bare word."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, *Functions)):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name.strip("_").lower() in BARE_NAMES:
            yield f"{name} (line {node.lineno})"


def fragments(tree: ast.Module) -> Iterator[str]:
    """Yields the first line of each docstring that begins as a fragment."""
    for node in ast.walk(tree):
        words = ast.get_docstring(node) if isinstance(node, Documented) else None
        if words and words.split()[0].rstrip(",.:;") in FRAGMENT_WORDS:
            yield words.partition("\n")[0]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def excess(modules, look, allowed: dict[str, int]) -> dict[str, list[str]]:
    """Returns what `look` finds in each package that has more of it than it is allowed."""
    by_package = defaultdict(list)
    for path, tree in modules.items():
        by_package[path.parts[0]] += [f"{path}: {words}" for words in look(tree)]
    return {package: places for package, places in by_package.items() if len(places) > allowed.get(package, 0)}


def test_only_protocol_words_are_class_names_in_two_modules(modules):
    n_modules = Counter(name for tree in modules.values() for name in public_classes(tree))

    assert {name for name, n in n_modules.items() if n > 1} == SHARED_CLASSES


def test_fewer_than_ten_class_names_are_shared():
    assert len(SHARED_CLASSES) < 10


def test_no_class_function_or_parameter_has_a_bare_word_for_a_name(modules):
    assert excess(modules, bare_names, BARE_NAMES_ALLOWED) == {}


def test_no_docstring_begins_as_a_fragment(modules):
    assert excess(modules, fragments, FRAGMENTS_ALLOWED) == {}


@pytest.mark.parametrize(
    "code",
    [
        "class Found: ...",
        "class _Plain: ...",
        "def whole(): ...",
        "async def _sent(self): ...",
        "def f(asked): ...",
        "def f(*, told=None): ...",
        "def f(*others): ...",
        "call = lambda one: one",
    ],
)
def test_each_kind_of_bare_name_is_seen(code):
    assert len(list(bare_names(ast.parse(code)))) == 1


@pytest.mark.parametrize("code", ["class FoundCall: ...", "def send(): ...", "def f(one_token, n_sent): found = 1"])
def test_names_that_say_more_and_local_variables_are_free(code):
    assert list(bare_names(ast.parse(code))) == []


@pytest.mark.parametrize(
    ("code", "n"),
    [
        ('"""Of values of this type."""', 1),
        ('class Lane:\n    """Whoever sends."""', 1),
        ('async def close():\n    """Twice, or more often, is harmless."""', 1),
        ('def close():\n    """Closes the lane. Twice is harmless."""', 0),
        ('def close():\n    """Offers a lane."""', 0),
        ("def close(): ...", 0),
    ],
)
def test_a_docstring_is_judged_by_its_first_word(code, n):
    assert len(list(fragments(ast.parse(code)))) == n
