"""Choices of completions, read as answers."""

import pytest

from corosrv.client.groups import AnswerToken, read_answers


@pytest.mark.parametrize("word", ["abort", "cancelled"])
def test_an_answer_that_was_cut_off_is_not_complete(word):
    (answer,) = read_answers([{"index": 0, "message": {"content": "so far"}, "finish_reason": word}])

    assert (answer.text, answer.finish, answer.is_complete) == ("so far", "cancelled", False)


def test_answers_are_in_the_order_of_their_indices():
    answers = read_answers([{"index": 1, "text": "b"}, {"index": 0, "text": "a"}])

    assert [answer.text for answer in answers] == ["a", "b"]


def test_tokens_of_chats_and_of_texts_are_read():
    chat = {"logprobs": {"content": [{"token": "a", "logprob": -0.5, "id": 7, "bytes": [97], "top_logprobs": []}]}}
    text = {"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0]}}

    of_chat, of_text = read_answers([chat, text])

    assert of_chat.tokens == (AnswerToken("a", -0.5, 7),)
    assert of_text.tokens == (AnswerToken("a", None), AnswerToken("b", -1.0))


def test_a_message_without_content_is_an_empty_text():
    (answer,) = read_answers([{"message": {"content": None, "tool_calls": []}, "finish_reason": "tool_calls"}])

    assert (answer.text, answer.finish) == ("", "tool_calls")


def test_what_is_no_choice_is_refused():
    with pytest.raises(ValueError, match="no object"):
        read_answers(["x"])
