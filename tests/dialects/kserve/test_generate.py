"""Generated text: requests, whole answers and events."""

from __future__ import annotations

import json
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient

from corosrv.base.errors import HandlerFailed, Refused
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferOutputs, InferRequest
from corosrv.dialects.kserve.generate_answer import GeneratedText, TextEvents, decode_generate
from corosrv.formats.tensors import Tensor, TensorSpec
from tests.dialects.kserve.generator_worker import Answers, GeneratorWorker, Model
from tests.dialects.kserve.models import TEXT, TEXT_OUTPUT, text

SENTENCE = "grüße an die Welt"
CARD = HandlerCard(
    "m",
    inputs=[
        TensorSpec("text_input", "BYTES", [1]),
        TensorSpec("size", "INT32", [1], optional=True),
        TensorSpec("weights", "FP32", [2, -1], optional=True),
    ],
)


def decode(card: HandlerCard = CARD, **members: Any):
    return decode_generate(json.dumps(members).encode(), card)


def events_of(body: bytes) -> list[dict[str, Any]]:
    *events, rest = body.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_text_is_an_input_of_one_element():
    decoded = decode(text_input="Grüße")

    assert decoded.request.inputs == (Tensor("text_input", "BYTES", [1], data=["Grüße"]),)
    assert (decoded.id, decoded.request.outputs) == (None, None)


@pytest.mark.parametrize(("declared", "shape"), [([], ()), ([-1], (1,)), ([1, 1], (1, 1)), ([-1, -1], (1, 1))])
def test_a_text_has_the_declared_shape(declared: list[int], shape: tuple[int, ...]):
    card = HandlerCard("m", inputs=[TensorSpec("text_input", "BYTES", declared)])

    assert decode(card, text_input="a").request.inputs[0].shape == shape


@pytest.mark.parametrize("specs", [[TensorSpec("a", "INT32", [1])], [TensorSpec("text_input", "INT32", [1])]])
def test_a_model_without_a_text_takes_none(specs: list[TensorSpec]):
    with pytest.raises(Refused, match="takes no text"):
        decode(HandlerCard("m", inputs=specs), text_input="a")


def test_other_members_are_inputs_where_declared_and_parameters_elsewhere():
    decoded = decode(text_input="a", size=3, weights=[[1, 2.5], [3, 4]], top_k=5, stream=True, name="x", ratio=0.5)

    assert [(tensor.name, tensor.shape, tensor.data) for tensor in decoded.request.inputs[1:]] == [
        ("size", (1,), [3]),
        ("weights", (2, 2), [1.0, 2.5, 3.0, 4.0]),
    ]
    assert decoded.request.parameters == {"top_k": 5, "stream": True, "name": "x", "ratio": 0.5}


def test_several_stop_strings_are_a_parameter_of_json():
    decoded = decode(text_input="a", parameters={"stop": ["\n", "é"], "timeout": 5, "priority": 1, "x": 1})

    assert {**decoded.request.parameters} == {"stop_strings": '["\\n","é"]', "x": 1}
    assert (decoded.front.timeout_us, decoded.front.priority) == (5, 1)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "text_input"),
        ({"text_input": None}, "text_input"),
        ({"text_input": ["a"]}, "text_input"),
        ({"text_input": "a", "id": 5}, "id"),
        ({"text_input": "a", "parameters": []}, "parameters"),
        ({"text_input": "a", "parameters": {"x": None}}, "parameters.x"),
        ({"text_input": "a", "parameters": {"x": [1]}}, "parameters.x"),
        ({"text_input": "a", "parameters": {"stop": ["a", 1]}}, "parameters.stop"),
        ({"text_input": "a", "x": [1]}, "x"),
        ({"text_input": "a", "x": None}, "x"),
        ({"text_input": "a", "x": {}}, "x"),
        ({"text_input": "a", "x": 1, "parameters": {"x": 1}}, "x"),
        ({"text_input": "a", "size": 1.0}, "size"),
        ({"text_input": "a", "size": [1, 2]}, "size"),
        ({"text_input": "a", "size": None}, "size"),
        ({"text_input": "a", "weights": [1, 2, 3]}, "weights"),
    ],
)
def test_a_wrong_member_is_named(members: dict[str, Any], param: str):
    with pytest.raises(Refused) as caught:
        decode(**members)

    assert caught.value.param == param


def test_a_member_that_is_neither_an_input_nor_a_parameter_is_told_so():
    with pytest.raises(Refused, match="x is no declared input of this model, and a parameter must be"):
        decode(text_input="a", x=["b"])


def test_a_list_of_stop_strings_that_has_others_is_told_what_it_may_have():
    with pytest.raises(Refused, match=r"parameters\.stop must be a string, or an array of strings"):
        decode(text_input="a", parameters={"stop": ["a", 1]})


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b'{"text_input": "\\ud800"}', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes):
    with pytest.raises(Refused):
        decode_generate(body, CARD)


@pytest.mark.parametrize("model", ["words", "streams"])
def test_a_streaming_models_pieces_are_joined(client: FlaskClient, model: str):
    answer = client.post(f"/v2/models/{model}/generate", json={"text_input": SENTENCE, "id": "7"})

    assert answer.json == {"model_name": model, "id": "7", "text_output": SENTENCE}


def test_a_stream_has_the_same_text_in_pieces(client: FlaskClient):
    answer = client.post("/v2/models/words/generate_stream", json={"text_input": SENTENCE})

    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = events_of(answer.data)
    assert [event["text_output"] for event in events] == ["grüße ", "an ", "die ", "Welt", ""]
    assert [event["done"] for event in events] == [False, False, False, False, True]
    assert all(event["model_name"] == "words" for event in events)


def test_event_streams_are_never_compressed(client: FlaskClient):
    answer = client.post(
        "/v2/models/words/generate_stream", json={"text_input": "a"}, headers={"Accept-Encoding": "gzip, deflate"}
    )

    assert "Content-Encoding" not in answer.headers
    assert events_of(answer.data)


def test_a_failure_before_the_first_piece_is_an_ordinary_error(client: FlaskClient):
    body = {"text_input": "a b", "parameters": {"fail_after": 0}}

    for path in ("generate", "generate_stream"):
        answer = client.post(f"/v2/models/words/{path}", json=body)
        assert (answer.status_code, answer.json) == (500, {"error": "the handler failed"})
        assert answer.headers["Content-Type"] == "application/json"


def test_a_failure_after_a_piece_is_the_last_event(client: FlaskClient):
    body = {"text_input": "a b", "parameters": {"fail_after": 1, "pause": 0.01}}

    events = events_of(client.post("/v2/models/words/generate_stream", json=body).data)

    assert [event.get("text_output") for event in events] == ["a ", None]
    assert events[-1] == {"error": "the handler failed"}


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_model_that_is_unknown_or_takes_no_text_is_an_ordinary_error(client: FlaskClient, path: str):
    assert client.post(f"/v2/models/none/{path}", json={"text_input": "a"}).status_code == 404
    assert client.post(f"/v2/models/add/{path}", json={"text_input": "a"}).status_code == 400
    assert client.post(f"/v2/models/words/versions/9/{path}", json={"text_input": "a"}).status_code == 404


def test_a_model_that_gives_no_text_is_refused(client: FlaskClient):
    answer = client.post("/v2/models/echo/generate", json={"text_input": "a"})

    assert answer.status_code == 400
    assert "'echo' gives no text_output" in answer.json["error"]


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_model_that_declares_no_text_is_not_called(client: FlaskClient, worker: GeneratorWorker, path: str):
    card = HandlerCard("numbers", outputs=[TensorSpec("sum", "INT32", [1])])
    worker.models = {**worker.models, "numbers": Model(card, lambda request: iter(()))}

    answer = client.post(f"/v2/models/numbers/{path}", json={"text_input": "a"})

    assert (answer.status_code, worker.jobs) == (400, [])
    assert "'numbers' gives no text_output" in answer.json["error"]


def test_a_text_that_never_ends_is_given_up_and_its_call_cancelled(client: FlaskClient, worker: GeneratorWorker):
    def endless(request: InferRequest) -> Answers:
        while True:
            gevent.sleep(0)
            yield text(b"x" * 4_000_000)

    card = HandlerCard("endless", inputs=TEXT, outputs=TEXT_OUTPUT, is_stream=True)
    worker.models = {**worker.models, card.key: Model(card, endless)}

    with gevent.Timeout(20):
        answer = client.post("/v2/models/endless/generate", json={"text_input": "a"})
    gevent.idle()

    assert answer.status_code == 500
    assert answer.json["error"].startswith("the joined answer exceeds")
    assert (worker.n_running, worker.n_cancelled) == (0, 1)


def test_a_stream_is_submitted_as_one(client: FlaskClient, worker: GeneratorWorker):
    client.post("/v2/models/words/generate_stream", json={"text_input": "a", "parameters": {"timeout": 10**7}})

    (job,) = worker.jobs
    assert job.stream
    assert job.terms.deadline is not None


def joined(*answers: InferOutputs) -> dict[str, Any]:
    return GeneratedText(HandlerCard("m", "2"), None).joined(list(answers))


def encoded(*items: InferOutputs | InferEnd) -> list[dict[str, Any]]:
    events = TextEvents(GeneratedText(HandlerCard("m"), None))
    return events_of(b"".join(events.encode([item]) for item in items))


def outputs(**values: Any) -> InferOutputs:
    kinds = {int: "INT32", str: "BYTES"}
    return InferOutputs(
        tuple(Tensor(name, kinds[type(value)], [1], data=[value]) for name, value in values.items()),
        is_final=bool(values.get("finish_reason")),
    )


def test_a_language_model_says_why_and_when_it_ended():
    answers = [
        outputs(text_output="a", finish_reason=""),
        outputs(text_output="b", finish_reason="stop", num_input_tokens=3, num_output_tokens=2),
    ]

    first, last = encoded(*answers, InferEnd())

    assert first == {"model_name": "m", "text_output": "a", "done": False}
    more = {"finish_reason": "stop", "num_input_tokens": 3, "num_output_tokens": 2}
    assert last == {"model_name": "m", "text_output": "b", "done": True, **more}
    assert joined(*answers) == {"model_name": "m", "model_version": "2", "text_output": "ab", **more}


def test_pieces_never_split_a_character():
    pieces = [text(b"gr\xc3"), text(b"\xbc\xf0\x9f"), text(b"\x98"), text(b"\x80!")]

    assert joined(*pieces)["text_output"] == "grü😀!"
    assert [event["text_output"] for event in encoded(*pieces, InferEnd())] == ["gr", "ü", "", "😀!", ""]


@pytest.mark.parametrize("content", [b"a\xff", b"a\xc3"])
def test_text_that_is_not_utf_8_is_an_error_and_never_mojibake(content: bytes):
    with pytest.raises(HandlerFailed, match="not UTF-8"):
        joined(text(content))
    assert encoded(text(content), InferEnd())[-1] == {"error": "the model's text_output is not UTF-8"}


def test_text_that_ends_within_a_character_is_an_error_also_where_it_says_so():
    assert encoded(text(b"a\xc3", is_final=True), InferEnd())[-1] == {"error": "the model's text_output is not UTF-8"}


def test_nothing_follows_the_last_event():
    assert len(encoded(text(b"a", is_final=True), text(b"b"), InferEnd(HandlerFailed("late")))) == 1
    assert len(encoded(InferEnd(HandlerFailed("it failed")), text(b"b"))) == 1


def test_every_text_model_declares_its_text(worker: GeneratorWorker):
    assert [card.inputs for card in (model.card for model in worker.models.values()) if card.is_stream] == [TEXT, TEXT]
