"""People chat on the page, in a real browser."""

from __future__ import annotations

import json

import pytest

from tests.web.page.scripted import BREAK, model


def test_an_answer_is_streamed_with_its_figures(chat, script):
    script.pieces = [{"reasoning_content": "Let me see."}, "Two ", "and two ", "are **four**."]
    chat.say_and_wait("Two and two?")

    assert chat.text(".answer > .markdown p") == "Two and two are four."
    assert chat.text(".answer summary") == "Thoughts"
    assert "tokens/s" in chat.text(".figures")
    assert "first token" in chat.text(".figures")
    assert script.asked[0]["messages"] == [{"role": "user", "content": "Two and two?"}]
    assert chat.page.logged == []


def test_an_answer_is_stopped_and_what_came_is_kept(chat, script):
    script.pieces, script.pause_s = ["word "] * 400, 0.05
    chat.say("Go on")
    chat.wait("document.querySelector('.answer > .markdown')?.innerText.length > 10")
    chat.page.press("Escape", 27)
    chat.wait("!document.querySelector('.is-running')")

    assert "word word" in chat.text(".answer > .markdown")
    assert "Stopped" in chat.text(".answer")


def test_regenerating_keeps_both_answers(chat, script):
    chat.say_and_wait("Hi")
    script.pieces = ["Another"]
    chat.click("Regenerate")
    chat.wait("document.querySelector('.answer > .markdown')?.innerText === 'Another'")
    chat.wait("!document.querySelector('.is-running')")

    assert "2 / 2" in chat.text(".answer .steps")
    chat.click("Previous answer")
    chat.wait("document.querySelector('.answer > .markdown').innerText === 'Hello there'")


def test_an_edited_message_stands_beside_the_first(chat, script):
    chat.say_and_wait("One")
    chat.say_and_wait("Two")
    chat.run("[...document.querySelectorAll('.said button')].find((one) => one.textContent === 'Edit').click()")
    chat.wait("!!document.querySelector('.edit textarea')")
    chat.run("document.querySelector('.edit textarea').select()")
    chat.page.type("Uno")
    chat.run("document.querySelector('.edit').requestSubmit()")
    chat.wait("document.querySelectorAll('.turn').length === 1 && !document.querySelector('.is-running')")

    assert script.asked[-1]["messages"] == [{"role": "user", "content": "Uno"}]
    chat.click("Previous message")
    chat.wait("document.querySelectorAll('.turn').length === 2")
    assert chat.texts(".said .words") == ["One", "Two"]


def test_a_branch_is_a_conversation_of_its_own(chat):
    chat.say_and_wait("One")
    chat.say_and_wait("Two")
    chat.run("[...document.querySelectorAll('.said button')].find((one) => one.textContent === 'Branch').click()")
    chat.wait("document.querySelectorAll('.turn').length === 1")

    assert chat.count(".chats li") == 2


def test_two_models_answer_side_by_side_and_each_reads_its_own(chat, script):
    chat.click("Compare")
    chat.say_and_wait("Hi")
    chat.say_and_wait("More")

    assert chat.count(".answers.two .answer") == 4
    assert {asked["model"] for asked in script.asked} == {"small", "large"}
    assert [len(asked["messages"]) for asked in script.asked] == [1, 1, 3, 3]


def test_instructions_and_sampling_are_sent(chat, script):
    chat.click("Settings")
    chat.wait("!!document.querySelector('dialog[open]')")
    chat.run("document.getElementById('system').focus()")
    chat.page.type("Be brief.")
    chat.run("document.querySelector('[name=temperature]').focus()")
    chat.page.type("0.25")
    chat.run("document.querySelector('dialog form').requestSubmit()")
    chat.wait("!document.querySelector('dialog')")
    chat.say_and_wait("Hi")

    assert script.asked[0]["temperature"] == 0.25
    assert script.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_calls_of_tools_are_shown_and_answered(chat, script):
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": '}}
    script.pieces = [{"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}]
    chat.say_and_wait("Weather?")
    assert "weather" in chat.text(".answer summary")
    script.pieces = ["Rain."]
    chat.run("document.querySelector('.results textarea').focus()")
    chat.page.type("wet")
    chat.click("Send the results")
    chat.wait("document.querySelectorAll('.turn').length === 2 && !document.querySelector('.is-running')")

    sent = script.asked[-1]["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "wet"}


PASTE = """
(async () => {
  const canvas = new OffscreenCanvas(%d, 40);
  canvas.getContext("2d").fillRect(0, 0, 9, 9);
  const data = new DataTransfer();
  data.items.add(new File([await canvas.convertToBlob()], "a.png", { type: "image/png" }));
  document.getElementById("message").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
})()
"""


def choose_large(chat):
    """Chooses the model that takes pictures, once the page knows of it."""
    chat.wait("!!document.querySelector('select option[value=large]')")
    chat.run("document.querySelector('select').value = 'large'")
    chat.run("document.querySelector('select').dispatchEvent(new Event('change'))")
    chat.wait("!!document.querySelector('.composer input[type=file]')")


CHOOSE_AT_ONCE = """
new MutationObserver((changes, observer) => {
  const select = document.querySelector("select");
  if (!select?.querySelector("option[value=large]")) return;
  observer.disconnect();
  select.value = "large";
  select.dispatchEvent(new Event("change"));
}).observe(document, { childList: true, subtree: true });
"""


def test_a_model_that_is_chosen_in_the_moment_in_which_the_list_is_there_stays_chosen(chat, script):
    with chat.page.before_pages(CHOOSE_AT_ONCE):
        chat.reload()
        chat.wait("document.querySelector('select')?.value === 'large'")
    chat.say_and_wait("Hi")

    assert script.asked[0]["model"] == "large"


def test_a_picture_is_pasted_where_the_model_takes_some(chat, script):
    chat.run(PASTE % 60)
    chat.wait("document.querySelector('.composer .note')?.innerText.includes('takes no pictures')")
    choose_large(chat)
    chat.run(PASTE % 60)
    chat.wait("!!document.querySelector('.composer .pictures img')")
    chat.say_and_wait("What is this?")

    picture, words = script.asked[0]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert words == {"type": "text", "text": "What is this?"}


PASTE_BYTES = """
(() => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(%d)], "big.png", { type: "image/png" }));
  document.getElementById("message").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
})()
"""


@pytest.mark.parametrize(("n_bytes", "words"), [(50_000_000, "is larger than 30 MB"), (1000, "cannot be read")])
def test_a_file_that_is_too_large_or_no_picture_is_refused_in_words(chat, script, n_bytes, words):
    choose_large(chat)

    chat.run(PASTE_BYTES % n_bytes)

    chat.wait(f"document.querySelector('.composer .note')?.innerText.includes('{words}')")
    assert chat.run("document.querySelectorAll('.composer .pictures img').length") == 0
    chat.say_and_wait("Hi")
    assert script.asked[0]["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_key_is_asked_for_and_kept_in_this_tab_only(chat, script):
    script.key = "secret"
    chat.say("Hi")
    chat.wait("!!document.querySelector('dialog[open] #key')")
    chat.run("document.getElementById('key').focus()")
    chat.page.type("secret")
    chat.run("document.querySelector('dialog form').requestSubmit()")
    chat.wait("!document.querySelector('dialog')")
    chat.click("Try again")
    chat.wait("document.querySelector('.answer > .markdown')?.innerText === 'Hello there'")

    assert chat.run("sessionStorage.getItem('corosrv-key')") == "secret"
    assert "secret" not in chat.run("JSON.stringify({...localStorage})")


def test_a_model_that_loads_is_waited_for(chat, script):
    script.health = {"status": "starting", "state": "starting", "error": {"message": "loading"}}
    script.statuses = [(503, {"message": "loading the model", "code": "loading"})] * 2
    chat.say("Hi")
    chat.wait("document.querySelector('.waiting')?.innerText.includes('waits for the model')")
    script.health = {"status": "ok", "state": "ready"}
    chat.wait("document.querySelector('.answer > .markdown')?.innerText === 'Hello there'")

    assert len(script.asked) == 3


def test_a_download_shows_how_far_it_is(chat, script):
    progress = {"bytes": 250_000_000, "total": 1_000_000_000}
    script.models = [{**model("big"), "status": {"value": "downloading", "progress": progress}}]
    chat.page.open(script.url + "#/chat/again")
    chat.reload()
    chat.wait("document.querySelector('.empty')?.innerText.includes('250 MB of 1.0 GB')")

    assert "25 %" in chat.text(".state")


def test_without_a_model_the_page_says_how_to_get_one(chat, script):
    script.models = []
    chat.reload()
    chat.wait("document.querySelector('.empty')?.innerText.includes('corosrv serve --model')")

    assert chat.run("document.querySelector('.send').disabled")


@pytest.mark.parametrize("status", [429, 400, 500])
def test_a_refusal_is_told_in_the_servers_words(chat, script, status: int):
    script.statuses = [(status, {"message": "temperature: too hot"})]
    chat.say_and_wait("Hi")

    assert "temperature: too hot" in chat.text(".answer .note")


def test_a_server_that_dies_in_an_answer_is_told_and_the_rest_kept(chat, script):
    script.pieces = ["Half an", " answer", BREAK]
    chat.say_and_wait("Hi")

    assert chat.text(".answer > .markdown") == "Half an answer"
    assert "broke off" in chat.text(".answer .note")


def test_conversations_are_kept_found_and_deleted(chat, script):
    chat.say_and_wait("About the sea")
    chat.click("New chat")
    chat.wait("document.querySelectorAll('.turn').length === 0")
    chat.say_and_wait("About a mountain")
    chat.reload()
    chat.wait("document.querySelectorAll('.chats li').length === 2")
    chat.run("document.getElementById('search').focus()")
    chat.page.type("SEA")
    chat.wait("document.querySelectorAll('.chats li').length === 1")
    chat.click("Delete About the sea")
    chat.wait("!!document.querySelector('.remove.sure')")
    chat.run("document.querySelector('.remove.sure').click()")
    chat.wait("document.querySelectorAll('.chats li').length === 0")

    kept = chat.run("Object.keys(localStorage).filter((key) => key.startsWith('corosrv.chat./llm')).length")
    assert kept == 1


def choose_file(chat, text: str) -> None:
    file = f"new File([{json.dumps(text)}], 'a.json')"
    chat.run(
        "{ const input = document.getElementById('import');"
        f"Object.defineProperty(input, 'files', {{ value: [{file}], configurable: true }});"
        "input.dispatchEvent(new Event('change')) }"
    )


def test_an_export_is_imported_beside_what_is_there(chat):
    chat.say_and_wait("About the sea")
    exported = chat.run(
        "import(document.querySelector('script[type=module]').src.replace('main', 'store'))"
        ".then(({ Store }) => new Store('/llm').exported())"
    )
    assert json.loads(exported)["conversations"][0]["title"] == "About the sea"
    choose_file(chat, exported)
    chat.wait("document.querySelectorAll('.chats li').length === 2")


def test_a_file_that_is_none_is_refused_with_its_fault(chat):
    for text, words in (("{", "Nothing was imported"), ('{"conversations": [{"id": "a"}]}', "no `turns`")):
        choose_file(chat, text)
        chat.wait(f"document.querySelector('.side .note')?.innerText.includes({json.dumps(words)})")


def test_a_full_storage_is_told_and_the_chat_goes_on(chat):
    chat.run(
        "for (let n = 400_000; n > 0; n = Math.floor(n / 2)) "
        "try { for (let i = 0; ; i++) localStorage.setItem(`fill${n}-${i}`, 'x'.repeat(n)) } catch {}"
    )
    chat.say_and_wait("Hi")

    assert chat.text(".answer > .markdown") == "Hello there"
    assert "storage is full" in chat.text(".chat > .note")


def test_two_tabs_do_not_overwrite_each_other(chat):
    chat.say_and_wait("From the first")
    other = """
    (async () => {
      const source = document.querySelector("script[type=module]").src;
      const { Store } = await import(source.replace("main", "store"));
      const tree = await import(source.replace("main", "tree"));
      const store = new Store("/llm");
      const [one] = store.list();
      tree.add(one, tree.newTurn(tree.path(one).at(-1).id, { text: "From the second" }));
      store.save(one);
    })()
    """
    chat.run(other)
    chat.say_and_wait("From the first again")

    kept = chat.run(
        "Object.keys(localStorage).filter((key) => key.startsWith('corosrv.chat.'))"
        ".map((key) => localStorage.getItem(key)).join()"
    )
    assert "From the second" in kept
    assert "From the first again" in kept
