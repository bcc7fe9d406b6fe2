"""What files say is asked, and when."""

from __future__ import annotations

import json

import pytest

from corosrv.base.errors import BenchError
from corosrv.client.bench import plan as mixes
from corosrv.client.bench.plan import BenchPlan, Dialogue, Mix, Point, TracedRequest, read_dialogues, read_trace

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "left out"},
    {"role": "user", "content": "two"},
]


def written(folder, *lines):
    path = folder / "lines.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_conversations_are_texts_prompts_and_messages(tmp_path):
    path = written(tmp_path, '"a text"', "", {"prompt": "a prompt", "id": 7}, {"messages": MESSAGES})

    assert read_dialogues(path) == (
        Dialogue(("a text",)),
        Dialogue(("a prompt",)),
        Dialogue(("one", "two"), "be brief"),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ("5", "line 2: Expected"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 2: a text, a `prompt`"),
        ('""', "line 2: a text"),
        ("{}", "line 2: a text"),
    ],
)
def test_a_line_that_asks_nothing_is_named(tmp_path, line, said):
    with pytest.raises(BenchError, match=said):
        read_dialogues(written(tmp_path, '"good"', line))


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(BenchError, match="empty"):
        read_trace(written(tmp_path))


def traced(timestamp, n_input=10, n_output=4):
    return {"timestamp": timestamp, "input_length": n_input, "output_length": n_output, "hash_ids": [1]}


def test_a_trace_begins_with_its_first_request_and_may_be_stretched(tmp_path):
    path = written(tmp_path, traced(7000, 30, 3), traced(5000, 10, 1), traced(5500, 20, 2))

    assert read_trace(path) == (TracedRequest(0.0, 10, 1), TracedRequest(0.5, 20, 2), TracedRequest(2.0, 30, 3))
    assert [request.at for request in read_trace(path, rate=10.0)] == pytest.approx([0.0, 0.05, 0.2])


@pytest.mark.parametrize(
    ("lines", "rate", "said"),
    [
        ([traced(0, n_input=0)], 0.0, "no token"),
        ([traced(0), traced(1, n_output=-1)], 0.0, "no token"),
        ([traced(3), traced(3)], 2.0, "same timestamp"),
        ([{"timestamp": 3}], 0.0, "input_length"),
    ],
)
def test_a_trace_that_cannot_be_sent_is_refused(tmp_path, lines, rate, said):
    with pytest.raises(BenchError, match=said):
        read_trace(written(tmp_path, *lines), rate)


def test_requests_of_a_trace_are_as_long_as_it_says():
    plan = BenchPlan(mix=Mix.TRACE, trace=(TracedRequest(0.0, 1500, 7), TracedRequest(0.25, 15, 9)), requests=10)
    bodies = [json.loads(mixes.body(plan, "m", 0, i)) for i in (0, 1)]

    assert plan.n_requests(Point()) == 2
    assert mixes.times(plan, Point(), 0) == [0.0, 0.25]
    assert [body["max_tokens"] for body in bodies] == [7, 9]
    assert [len(body["messages"][0]["content"].split()) for body in bodies] == [mixes.LONG_WORDS, 14]
    assert mixes.body(plan, "m", 0, 0) != mixes.body(plan, "m", 1, 0)


def test_a_later_turn_has_the_answers_before_it():
    plan = BenchPlan(turns=3)
    first, third = (json.loads(mixes.body(plan, "m", 0, 5, answers=answers)) for answers in ((), ("A", "B")))

    assert [turn["role"] for turn in third["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert third["messages"][0] == first["messages"][0]
    assert [turn["content"] for turn in third["messages"][1::2]] == ["A", "B"]
    assert len({turn["content"] for turn in third["messages"]}) == 5


def test_a_conversation_of_a_file_has_its_turns_or_fewer():
    dialogues = (Dialogue(("one", "two", "three"), "be brief"), Dialogue(("alone",)))

    assert [mixes.n_turns(BenchPlan(dialogues=dialogues), i) for i in range(3)] == [3, 1, 3]
    assert [mixes.n_turns(BenchPlan(dialogues=dialogues, turns=2), i) for i in range(3)] == [2, 1, 2]
    body = json.loads(mixes.body(BenchPlan(dialogues=dialogues), "m", 0, 2, answers=("A",)))
    assert [turn["content"] for turn in body["messages"]] == ["be brief", "one", "A", "two"]
