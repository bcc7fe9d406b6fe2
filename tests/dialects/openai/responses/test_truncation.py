"""A conversation that its model's context does not hold loses its oldest turns, where a request asks for that."""

from typing import Any

import pytest

from corosrv.base.errors import PromptTooLong
from corosrv.contracts.jobs import Text
from corosrv.dialects.chat.conversation import ContextRoom, newest_turns


def said(role: str, *texts: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": text} for text in texts]


def texts(turns: Any) -> str:
    return " ".join(turn["content"] for turn in turns)


def kept(turns: list[dict[str, Any]], n_characters: int) -> str:
    """Returns the texts of what is left of a conversation where a context holds so many characters of texts."""
    return texts(newest_turns(tuple(turns), lambda turns: sum(len(turn["content"]) for turn in turns) <= n_characters))


CHAT = [
    *said("system", "S"),
    *said("user", "a"), *said("assistant", "b"),
    *said("user", "c"), *said("assistant", "d"),
    *said("user", "e"),
]  # fmt: skip
# What a model does for one question: it calls, reads results, and calls again.
WORK = [
    *said("user", "q"),
    *said("assistant", "1"), *said("tool", "x", "y"),
    *said("assistant", "2"), *said("tool", "z"),
    *said("assistant", "3"), *said("tool", "w"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("n_characters", "left"),
    [(6, "S a b c d e"), (5, "S c d e"), (4, "S c d e"), (3, "S e"), (2, "S e"), (1, "S e"), (0, "S e")],
)
def test_the_oldest_questions_go_with_their_answers(n_characters: int, left: str) -> None:
    assert kept(CHAT, n_characters) == left


@pytest.mark.parametrize(
    ("n_characters", "left"), [(8, "q 1 x y 2 z 3 w"), (7, "q 2 z 3 w"), (4, "q 3 w"), (3, "q 3 w"), (0, "q 3 w")]
)
def test_calls_go_with_their_results_and_the_question_stays(n_characters: int, left: str) -> None:
    assert kept(WORK, n_characters) == left


def test_older_questions_go_before_what_was_done_for_the_last() -> None:
    conversation = [*CHAT[:-1], *WORK]

    assert kept(conversation, 11) == "S c d q 1 x y 2 z 3 w"
    assert kept(conversation, 8) == "S q 2 z 3 w"


def test_what_stands_before_the_first_question_goes_first() -> None:
    conversation = [*said("assistant", "g"), *said("user", "a"), *said("assistant", "b"), *said("user", "c")]

    assert kept(conversation, 3) == "a b c"


def test_system_turns_stay_wherever_they_stand() -> None:
    conversation = [*said("user", "a"), *said("system", "S"), *said("assistant", "b"), *said("user", "c")]

    assert kept(conversation, 3) == "S c"


@pytest.mark.parametrize(
    "turns", [[], said("user", "a"), said("system", "S"), said("assistant", "a"), said("tool", "a")]
)
def test_one_turn_that_does_not_fit_is_left_to_the_engine_to_refuse(turns: list[dict[str, Any]]) -> None:
    assert kept(turns, -1) == texts(turns)


def test_a_long_conversation_is_counted_a_few_times() -> None:
    counted: list[int] = []

    def fits(turns: Any) -> bool:
        counted.append(len(turns))
        return len(turns) <= 100

    assert len(newest_turns(tuple(said("user", *("x",) * 2000)), fits)) == 100
    assert len(counted) <= 13


@pytest.mark.parametrize(
    ("n_tokens", "max_output_tokens", "holds"),
    [
        (90, 10, True), (91, 10, False),  # an answer of a set length
        (75, None, True), (76, None, False),  # one of an open length gets a quarter
        (50, 80, True), (51, 80, False),  # none gets more than half
    ],
)  # fmt: skip
def test_a_prompt_leaves_room_for_its_answer(n_tokens: int, max_output_tokens: int | None, holds: bool) -> None:
    room = ContextRoom(100, max_output_tokens, lambda prompt: n_tokens)

    assert room.holds(Text("")) is holds


def test_a_prompt_that_is_too_long_to_be_counted_is_not_held() -> None:
    def count(prompt: Any) -> int:
        raise PromptTooLong(5000, 100)

    assert not ContextRoom(100, 10, count).holds(Text(""))


def test_any_prompt_is_held_where_the_context_is_not_known() -> None:
    assert ContextRoom(0, None, lambda prompt: 5000).holds(Text(""))
