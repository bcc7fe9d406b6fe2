"""A conversation in the terminal: what is sent, what is shown, and what hostile answers do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from corosrv.client import chat
from corosrv.client.chat import ChatFailed, Delta, TerminalChat


class ScriptedModels:
    """Answers with what it was given, and remembers what it was asked."""

    def __init__(self, *answers: list[Delta | BaseException]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._answers = list(answers)

    def models(self) -> list[str]:
        return ["a", "b"]

    def answer(self, body: dict[str, Any]) -> Generator[Delta, None, None]:
        self.bodies.append(body)
        for piece in self._answers.pop(0) if self._answers else [Delta("Yes.")]:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


def reading(*lines: str | BaseException) -> Callable[[], str]:
    left = [*lines, EOFError()]

    def read() -> str:
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def hold(server: ScriptedModels, *lines: str | BaseException, **options: Any) -> str:
    shown: list[str] = []
    TerminalChat(server, "a", write=shown.append, **options).run(reading(*lines))
    return "".join(shown)


def sent(server: ScriptedModels) -> list[list[tuple[str, str]]]:
    return [[(turn["role"], turn["content"]) for turn in body["messages"]] for body in server.bodies]


def test_each_question_is_sent_with_what_was_said_before():
    server = ScriptedModels([Delta("One"), Delta(".")])

    assert hold(server, "First?", "", "Second?") == "One.\nYes.\n"
    assert sent(server) == [
        [("user", "First?")],
        [("user", "First?"), ("assistant", "One."), ("user", "Second?")],
    ]


def test_a_conversation_can_be_forgotten_and_its_system_prompt_changed():
    server = ScriptedModels()

    hold(server, "First?", "/clear", "/system Be brief.", "Second?", "/system -", "/clear", "Third?", system="Rhyme.")

    assert sent(server) == [
        [("system", "Rhyme."), ("user", "First?")],
        [("system", "Be brief."), ("user", "Second?")],
        [("user", "Third?")],
    ]


def test_another_model_can_be_chosen_and_none_that_is_not_there():
    server = ScriptedModels()

    shown = hold(server, "/model c", "One?", "/model b", "Two?")

    assert "there is no model c" in shown
    assert "* b\n" in shown
    assert [body["model"] for body in server.bodies] == ["a", "b"]


def test_an_answer_that_is_stopped_stays_as_far_as_it_went():
    server = ScriptedModels([Delta("One"), KeyboardInterrupt()])

    assert "One (stopped)" in hold(server, "First?", "Second?")
    assert sent(server)[1][1] == ("assistant", "One")


def test_a_question_that_failed_is_not_sent_again():
    server = ScriptedModels([ChatFailed("it is on fire")])

    assert "error: it is on fire" in hold(server, "First?", "Second?")
    assert sent(server)[1] == [("user", "Second?")]


def test_ctrl_c_at_the_prompt_ends_the_line_and_not_the_conversation():
    server = ScriptedModels()

    hold(server, KeyboardInterrupt(), "First?")

    assert len(server.bodies) == 1


@pytest.mark.parametrize("word", ["/exit", "/bye"])
def test_a_word_ends_it(word: str):
    server = ScriptedModels()

    hold(server, word, "First?")

    assert server.bodies == []


def test_figures_and_dim_thoughts_are_for_terminals():
    end = Delta(timings={"predicted_per_second": 12.34, "predicted_n": 5})
    pieces: list[Any] = [Delta(thoughts="Hm."), Delta("Yes."), end]

    plain, styled = hold(ScriptedModels(pieces), "a"), hold(ScriptedModels(pieces), "a", is_styled=True)

    assert plain == "Hm.Yes.\n"
    assert "\x1b[2mHm.\x1b[0m" in styled
    assert "5 tokens, 12.3 tokens/s" in styled


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\tb\n"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x9b2J", "\ufffd2J"),
        ("żółć 👩‍🚀", "żółć 👩‍🚀"),
    ],
)
def test_a_terminal_obeys_no_answer(text: str, shown: str):
    assert chat.printable(text) == shown
    assert chat._delta({"choices": [{"delta": {"content": text}}]}).text == shown


@pytest.mark.parametrize(
    "event", [{}, {"choices": []}, {"choices": 7}, {"choices": [{"delta": 7}]}, {"choices": [7], "timings": 7}]
)
def test_an_event_without_text_shows_nothing(event: dict[str, Any]):
    assert chat._delta(event) == Delta()


def test_an_event_that_tells_of_an_error_ends_the_answer():
    with pytest.raises(ChatFailed, match="no slot"):
        chat._delta({"error": {"message": "no slot"}})
