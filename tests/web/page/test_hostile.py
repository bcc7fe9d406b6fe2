"""Hostile texts of models, servers and files are shown as text, and the page stays what it is."""

from __future__ import annotations

import json

import pytest

from tests.web.page.scripted import model

PAYLOADS = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><script>window.pwned = 1</script></svg>",
    "<math><mtext><style><img src=x onerror='window.pwned = 1'></style></mtext></math>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "[a](javascript:window.pwned=1) [b](data:text/html,<script>1</script>) [c](vbscript:x)",
    "![x](javascript:window.pwned=1) ![y](https://evil.example/?q=said)",
    "$\\href{javascript:window.pwned=1}{x}$ $$\\includegraphics{https://evil.example/a.png}$$",
    "$\\htmlData{a=b}{<img src=x onerror=window.pwned=1>}$ \\(\\unknown<svg onload=window.pwned=1>\\)",
    "```html\n<script>window.pwned = 1</script>\n```",
    '```"><img/src=x/onerror=window.pwned=1>\n<b>x</b>\n```',
    "| <img src=x onerror=window.pwned=1> | b |\n| --- | --- |\n| <svg/onload=window.pwned=1> | `<i>` |",
    '<a href="#" id="app" name="message" style="position:fixed;inset:0" class="bar">click</a>',
    "<form action=https://evil.example><input name=key></form>",
]
TAGS = ["SCRIPT", "IFRAME", "OBJECT", "EMBED", "STYLE", "LINK", "BASE", "META", "VIDEO", "AUDIO"]
TAGS_OF_A_TEXT = ["IMG", "FORM", "INPUT", "svg"]  # that the page itself has elsewhere
# Elements that could act, or that only the page may have.
ACTIVE = f"""
[...document.querySelectorAll('.turn *, .side *, .head *')].filter((one) => {TAGS}.includes(one.tagName)
  || [...one.attributes].some(({{ name }}) => name.startsWith('on'))
  || one.closest('.markdown') && (one.id || one.hasAttribute('style') || {TAGS_OF_A_TEXT}.includes(one.tagName)
    || one.tagName === 'A' && one.hasAttribute('href') && !/^https?:/.test(one.href))
).map((one) => one.outerHTML.slice(0, 200))
"""
ODD = "a\u202eb\u2066c\u200bd\ufeffe\U000e0041f"


def harmless(chat) -> None:
    chat.run("new Promise((resolve) => setTimeout(resolve, 700))")  # formulas and colours come later
    assert chat.run(ACTIVE) == []
    assert chat.run("window.pwned === undefined")
    assert [line for line in chat.page.logged if '"network"' not in line] == []  # the policy had nothing to stop


@pytest.mark.parametrize("n_pieces", [1, 40])
def test_a_text_of_a_model_is_nothing_but_text(chat, script, n_pieces: int):
    whole = "\n\n".join(PAYLOADS)
    size = -(-len(whole) // n_pieces)
    script.pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    script.pause_s = 0.02 if n_pieces > 1 else 0
    chat.say_and_wait("Hi")

    harmless(chat)
    assert "<script>window.pwned = 1</script>" in chat.text(".answer > .markdown")
    assert "https://evil.example/?q=said" in chat.run("document.querySelector('.answer > .markdown').innerHTML")


def test_thoughts_and_calls_of_tools_are_text(chat, script):
    calls = [{"index": i, "id": "c", "function": {"name": p, "arguments": p}} for i, p in enumerate(PAYLOADS)]
    script.pieces = [{"reasoning_content": "\n\n".join(PAYLOADS)}, {"tool_calls": calls}]
    chat.say_and_wait("Hi")
    chat.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")

    harmless(chat)


def test_names_of_models_and_errors_are_text(chat, script):
    script.models = [model(f"{ODD} {payload}") for payload in PAYLOADS]
    chat.reload()
    chat.wait("document.querySelectorAll('.head option').length > 10")
    chat.page.logged.clear()
    script.statuses = [(400, {"message": "\n".join([ODD, *PAYLOADS])})]
    chat.say_and_wait(PAYLOADS[1])

    harmless(chat)
    assert "\u2039U+202E\u203a" in chat.text(".answer .note")
    assert "\u2039U+202E\u203a" in chat.text(".who")


def test_an_imported_conversation_is_text(chat):
    answer = {
        "id": "a1", "side": 0, "model": PAYLOADS[0] + ODD, "text": "\n\n".join(PAYLOADS), "thoughts": PAYLOADS[2],
        "error": PAYLOADS[1], "finish": PAYLOADS[1],
        "calls": [{"id": "c", "name": PAYLOADS[1], "arguments": PAYLOADS[2]}],
        "figures": {"tokens": PAYLOADS[1], "perSecond": "<b>"}, "dangerouslySetInnerHTML": {"__html": PAYLOADS[1]},
    }  # fmt: skip
    turn = {
        "id": "t1", "parent": "", "text": PAYLOADS[2] + ODD, "answers": [answer],
        "images": ["javascript:window.pwned=1", "https://evil.example/a.png", "data:image/svg+xml;base64,PHN2Zz4="],
    }  # fmt: skip
    kept = {
        "id": "x", "title": PAYLOADS[1] + ODD, "turns": {"t1": turn, "__proto__": turn}, "models": [{"a": 1}],
        "options": {"temperature": "hot", "messages": [], "model": "x"},
    }  # fmt: skip
    store = "import(document.querySelector('script[type=module]').src.replace('main', 'store'))"
    text = json.dumps(json.dumps({"conversations": [kept]}))
    chat.run(f"{store}.then(({{ Store }}) => new Store('/llm').imported({text}))")
    chat.reload()
    chat.wait("document.querySelectorAll('.chats li').length === 1")
    chat.run("document.querySelector('.chats .open').click()")
    chat.wait("document.querySelectorAll('.turn').length === 1")

    harmless(chat)
    assert chat.count(".said img") == 0
    assert "\u2039U+202E\u203a" in chat.text(".chats .title")


def test_code_and_names_show_what_hides_and_reorders(chat, script):
    script.pieces = [f"```python\nif admin{ODD}:\n    pass\n```\n\nProse{ODD}", {"tool_calls": [
        {"index": 0, "id": "c", "function": {"name": ODD, "arguments": json.dumps({"a": ODD}, ensure_ascii=False)}}
    ]}]  # fmt: skip
    chat.say_and_wait("Hi")

    assert (
        "a\u2039U+202E\u203ab\u2039U+2066\u203ac\u2039U+200B\u203ad\u2039U+FEFF\u203ae\u2039U+E0041\u203af"
        in chat.text(".answer pre")
    )
    assert "\u2039U+202E\u203a" in chat.text(".answer .fold summary")
    # Prose may be in any script: an override in it ends with its block.
    assert (
        chat.run("getComputedStyle([...document.querySelectorAll('.answer > .markdown p')].at(-1)).unicodeBidi")
        == "isolate"
    )
    assert chat.run("getComputedStyle(document.querySelector('.said .words')).unicodeBidi") in ("plaintext", "isolate")


def test_right_to_left_text_runs_from_the_right(chat, script):
    script.pieces = ["مرحبا بالعالم\n\nHello"]
    chat.say_and_wait("שלום עולם")

    assert chat.run("getComputedStyle(document.querySelector('.answer > .markdown p')).direction") == "rtl"
    assert chat.run("document.querySelector('.said .words').matches(':dir(rtl)')")


def test_a_broken_entry_of_the_storage_is_left_alone(chat):
    chat.run(
        "localStorage.setItem('corosrv.chat./llm.x', '{\"turns\": 5}');localStorage.setItem('corosrv.chat./llm.y', '{')"
    )
    chat.reload()
    chat.wait("!!document.querySelector('.ideas')")
    chat.say_and_wait("Hi")

    assert chat.run("localStorage.getItem('corosrv.chat./llm.y')") == "{"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_html_is_cleaned_also_if_it_were_let_in(chat, payload: str):
    """Markdown lets no HTML in; this is the line behind it."""
    source = "document.querySelector('script[type=module]').src.replace('main', 'markdown')"
    chat.run(f"""
      import({source}).then(({{ cleaned }}) => {{
        const place = Object.assign(document.createElement("div"), {{ className: "turn markdown" }});
        place.append(cleaned({json.dumps(payload)}));
        document.body.replaceChildren(place);
      }})
    """)

    assert chat.run(ACTIVE) == []
    assert chat.run("window.pwned === undefined")
