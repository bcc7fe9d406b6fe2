"""Language models as models of the v2 protocol: the same text as any other dialect, from the same engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gevent
import msgspec
import pytest

from corosrv.base.errors import (
    CallCancelled,
    Conflict,
    CorosrvError,
    DeadlinePassed,
    InvalidTensor,
    KeyReused,
    NotFound,
    PromptTooLong,
    ReadTimeout,
    Refused,
    Starting,
)
from corosrv.contracts import settings
from corosrv.contracts.jobs import Job, Sampling, State, Terms, Text
from corosrv.contracts.jobs.infer import (
    CapabilityTarget,
    InferEnd,
    InferItem,
    InferJob,
    InferOutputs,
    InferReader,
    InferRequest,
    ModelTarget,
)
from corosrv.dialects.kserve.language import LanguageModels
from corosrv.formats.tensors import Tensor, check_inputs
from corosrv.models.engine import Engine
from corosrv.models.pool import ModelPool
from corosrv.workers.dispatch.answers import CallRecords
from tests.dialects.kserve.app import make_app
from tests.support.engines import packaged_model
from tests.support.waiting import eventually, wait_until

TIMEOUT = 30.0


def open_pool(**chosen: Any) -> ModelPool:
    values = {
        "model": "synthetic:?tokens_per_s=0",
        "model_alias": "poet,bard",
        "ctx": 512,
        "slots": 1,
        "n_predict": 16,
        **chosen,
    }
    gevent.get_hub()  # so that the pool's keeper is a greenlet, as in a server
    pool = ModelPool(settings.load(values, environ={}), Engine)
    pool.start()
    wait_until(lambda: pool.state is State.READY)
    return pool


@pytest.fixture(scope="module")
def pool() -> Iterator[ModelPool]:
    pool = open_pool()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def slow() -> Iterator[ModelPool]:
    pool = open_pool(model="synthetic:?tokens_per_s=50")
    yield pool
    pool.close()


@pytest.fixture
def models(pool: ModelPool) -> LanguageModels:
    return LanguageModels(pool)


def call(text: str | bytes = "Hello", stream: bool = False, terms: Terms | None = None, **parameters: Any) -> InferJob:
    request = InferRequest((Tensor("text_input", "BYTES", [1], [text]),), parameters=parameters)
    return InferJob(ModelTarget("poet"), request, stream, terms or Terms())


def read(reader: InferReader) -> list[InferItem]:
    items: list[InferItem] = []
    with reader:
        while taken := reader.take(TIMEOUT):
            items += taken
    return items


def answers_of(items: list[InferItem]) -> list[InferOutputs]:
    """The answers of a call that went well."""
    *answers, end = items
    assert end == InferEnd()
    assert all(isinstance(answer, InferOutputs) for answer in answers)
    return [answer for answer in answers if isinstance(answer, InferOutputs)]


def failure_of(items: list[InferItem]) -> CorosrvError | None:
    (end,) = (item for item in items if isinstance(item, InferEnd))
    assert items[-1] is end
    return end.error


def value(answer: InferOutputs, name: str) -> Any:
    (tensor,) = (tensor for tensor in answer.outputs if tensor.name == name)
    return tensor.data[0]


def text_of(answers: list[InferOutputs]) -> str:
    return b"".join(value(answer, "text_output") for answer in answers).decode()


def test_each_name_of_a_model_is_a_model_that_takes_text(models: LanguageModels):
    standings = models.standings()

    assert [(one.card.name, one.state) for one in standings] == [("poet", "READY"), ("bard", "READY")]
    assert models.find(ModelTarget("bard")) == standings[1].card
    check_inputs(standings[0].card.inputs, call().request.inputs)


def test_a_unary_call_answers_once_with_the_text_of_the_same_job(pool: ModelPool, models: LanguageModels):
    sampling = Sampling(temperature=1.0, seed=7)
    with pool.submit(Job((Text("Hello"),), max_tokens=12, sampling=sampling)) as reader:
        expected = list(reader)

    (answer,) = answers_of(read(models.submit(call(temperature=1.0, seed=7, max_tokens=12))))

    assert text_of([answer]) == "".join(chunk.text for chunk in expected)
    assert answer.is_final
    assert value(answer, "finish_reason") == b"length"
    assert value(answer, "num_input_tokens") == expected[-1].prompt_tokens
    assert value(answer, "num_output_tokens") == 12


def test_a_stream_gives_the_same_text_in_pieces_and_says_at_the_last_why_it_ended(slow: ModelPool):
    models = LanguageModels(slow)
    (whole,) = answers_of(read(models.submit(call(seed=3))))

    *pieces, last = answers_of(read(models.submit(call(stream=True, seed=3))))

    assert len(pieces) > 1
    assert text_of([*pieces, last]) == text_of([whole])
    assert {value(piece, "finish_reason") for piece in pieces} == {b""}
    assert not any(piece.is_final for piece in pieces)
    assert last.is_final
    assert value(last, "finish_reason") == b"length"
    assert {value(piece, "num_input_tokens") for piece in pieces} == {value(whole, "num_input_tokens")}
    assert value(last, "num_output_tokens") == 16


@pytest.mark.parametrize("stream", [False, True])
def test_the_input_comes_before_the_answer_where_it_is_asked_for(models: LanguageModels, stream: bool):
    without = text_of(answers_of(read(models.submit(call("Ä b", stream, seed=1)))))

    answers = answers_of(read(models.submit(call("Ä b", stream, seed=1, exclude_input_in_output=False))))

    assert text_of(answers) == "Ä b" + without


def test_a_stop_string_ends_the_text_alone_or_among_others(models: LanguageModels):
    text = text_of(answers_of(read(models.submit(call(seed=5, max_tokens=60)))))
    stop = text[20:24]
    before = text[: text.index(stop)]
    among = {"stop_strings": msgspec.json.encode(["never in there", stop]).decode()}

    for parameters in ({"stop": stop}, among):
        (answer,) = answers_of(read(models.submit(call(seed=5, max_tokens=60, **parameters))))

        assert text_of([answer]) == before
        assert value(answer, "finish_reason") == b"stop"


WRONG: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", "many"),
    ("max_tokens", True),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("top_p", 1.5),
    ("top_k", -2),
    ("seed", 2**64),
    ("stop", ""),
    ("exclude_input_in_output", 1),
    ("stop_strings", "no list"),
    ("stop_strings", "[1]"),
    ("best_of", 2),
    ("x" * 5000, 1),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name[:20]}={wrong!r}" for name, wrong in WRONG])
def test_a_parameter_that_is_wrong_or_unknown_is_refused_by_name(models: LanguageModels, name: str, wrong: Any):
    with pytest.raises(Refused) as refused:
        models.submit(call(**{name: wrong}))

    assert refused.value.status == 400
    assert len(str(refused.value)) < 600
    if not name.startswith("stop_"):
        assert name[:100] in str(refused.value)


def test_text_that_is_not_utf_8_is_refused_by_name(models: LanguageModels):
    with pytest.raises(InvalidTensor, match="text_input"):
        models.submit(call(b"\xff"))


def test_only_the_outputs_that_are_asked_for_are_given(models: LanguageModels):
    asked = call(stream=True)
    chosen = InferJob(asked.target, InferRequest(asked.request.inputs, outputs=("num_output_tokens",)), True)

    answers = answers_of(read(models.submit(chosen)))

    assert {tensor.name for answer in answers for tensor in answer.outputs} == {"num_output_tokens"}
    with pytest.raises(Refused, match="logits"):
        models.submit(InferJob(asked.target, InferRequest(asked.request.inputs, outputs=("logits",))))


@pytest.mark.parametrize(
    "target", [ModelTarget("nobody"), ModelTarget("poet", "2"), CapabilityTarget({"task": "write"})]
)
def test_a_model_that_is_not_served_is_not_found(models: LanguageModels, target: Any):
    with pytest.raises(NotFound):
        models.find(target)


def test_a_prompt_beyond_the_context_ends_the_call_with_its_error(models: LanguageModels):
    error = failure_of(read(models.submit(call("a" * 1000))))

    assert isinstance(error, PromptTooLong)
    assert error.status == 400


def test_a_cancelled_call_ends_as_cancelled_and_frees_its_slot(slow: ModelPool):
    reader = LanguageModels(slow).submit(call(stream=True, max_tokens=-1))
    reader.take(TIMEOUT)

    reader.cancel()

    assert isinstance(failure_of(read(reader)), CallCancelled)
    assert reader.is_finished
    eventually(lambda: not slow.slots(None)[0].is_busy, what="its slot is free")


def test_a_call_that_is_cancelled_before_it_is_read_is_never_queued(pool: ModelPool, models: LanguageModels):
    n_before = pool.slots(None)[0].task
    reader = models.submit(call())
    reader.cancel()

    assert isinstance(failure_of(read(reader)), CallCancelled)
    assert pool.slots(None)[0].task == n_before
    assert reader.take(TIMEOUT) == []


def test_a_closed_reader_gives_nothing_more_and_its_job_ends(slow: ModelPool):
    reader = LanguageModels(slow).submit(call(stream=True, max_tokens=-1))
    reader.take(TIMEOUT)

    reader.close()
    reader.close()

    assert reader.is_finished
    assert reader.take(TIMEOUT) == []
    eventually(lambda: not slow.slots(None)[0].is_busy, what="its slot is free")


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_a_call_in_the_queue_and_later_with_504(slow: ModelPool, stream: bool):
    models = LanguageModels(slow)
    with models.submit(call(stream=True, max_tokens=-1)) as holder:
        holder.take(TIMEOUT)
        queued = read(models.submit(call(stream=stream, terms=Terms(deadline=time.monotonic() + 0.1))))
    running = read(models.submit(call(stream=stream, max_tokens=-1, terms=Terms(deadline=time.monotonic() + 1.5))))

    for items in (queued, running):
        error = failure_of(items)
        assert isinstance(error, DeadlinePassed)
        assert (error.status, error.code) == (504, "deadline_exceeded")
    assert len(queued) == 1
    assert (len(running) > 1) == stream


def test_a_call_waits_in_the_queue_on_its_own_terms(slow: ModelPool):
    models = LanguageModels(slow)
    with models.submit(call(stream=True, max_tokens=-1)) as holder:
        holder.take(TIMEOUT)
        usual = slow.submit(Job((Text("a"),), max_tokens=100))
        urgent = models.submit(call(max_tokens=1, stream=True, terms=Terms(priority=1)))
        with pytest.raises(ReadTimeout):
            urgent.take(0.1)  # queues it

    answers_of(read(urgent))
    with usual:
        usual.take(TIMEOUT)
        assert not usual.is_finished


def test_a_model_that_is_still_loading_is_said_to_be():
    pool = ModelPool(settings.load({"model": "synthetic:"}, environ={}), Engine)
    models = LanguageModels(pool)

    assert models.standings() == ()
    with pytest.raises(Starting):
        models.find(ModelTarget("synthetic"))
    pool.close()


def test_a_file_s_name_that_the_protocol_does_not_allow_becomes_one_that_it_does():
    pool = open_pool(model="a=synthetic:,b=synthetic:", model_alias="")
    names = [standing.card.name for standing in LanguageModels(pool).standings()]
    pool.close()

    assert names == ["a", "b"]


def test_an_image_for_a_model_without_images_is_refused(models: LanguageModels):
    inputs = Tensor("text_input", "BYTES", [1], ["<__media__>"]), Tensor("image", "BYTES", [1], ["AAAA"])

    (end,) = read(models.submit(InferJob(ModelTarget("poet"), InferRequest(inputs), False, Terms())))

    assert isinstance(end, InferEnd)
    assert str(end.error) == "image: this model reads text only"


def test_images_that_are_no_base64_are_refused_at_once(models: LanguageModels):
    for tensor in (Tensor("image", "BYTES", [1], ["\u00e4".encode()]), Tensor("image", "INT32", [1], [5])):
        request = InferRequest((Tensor("text_input", "BYTES", [1], ["<__media__>"]), tensor))
        with pytest.raises(InvalidTensor, match="image"):
            models.submit(InferJob(ModelTarget("poet"), request, False, Terms()))


def test_infer_over_rest_answers_as_the_text_completion_of_the_same_job(pool: ModelPool, models: LanguageModels):
    client = make_app(models).test_client()
    body = {
        "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hello"]}],
        "parameters": {"seed": 9, "max_tokens": 8},
    }

    answer = client.post("/v2/models/poet/infer", json=body).get_json()

    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    expected = answers_of(read(models.submit(call(seed=9, max_tokens=8))))
    assert outputs["text_output"] == [text_of(expected)]
    assert outputs["finish_reason"] == ["length"]
    assert client.post("/v2/models/poet/infer", json=body | {"parameters": {"top_p": 2}}).status_code == 400


@pytest.mark.model
def test_a_real_model_streams_what_it_answers_at_once_and_what_a_job_of_another_dialect_gives():
    pool = open_pool(model=packaged_model(), threads=1)
    models = LanguageModels(pool)
    prompt = "Once upon a time"
    with pool.submit(Job((Text(prompt),), max_tokens=16, sampling=Sampling(temperature=0.8, seed=11))) as reader:
        expected = "".join(chunk.text for chunk in reader)

    whole = answers_of(read(models.submit(call(prompt, seed=11))))
    pieces = answers_of(read(models.submit(call(prompt, stream=True, seed=11))))
    pool.close()

    assert text_of(whole) == text_of(pieces) == expected
    assert expected


# The same request again.


def test_a_text_with_an_idempotency_key_is_generated_once(models: LanguageModels) -> None:
    terms = Terms(idempotency_key="once")
    first = read(models.submit(call(stream=True, terms=terms, seed=1)))

    second = models.submit(call(stream=True, terms=terms, seed=1))

    assert second.is_replayed
    assert text_of(answers_of(read(second))) == text_of(answers_of(first))
    with pytest.raises(KeyReused):
        models.submit(call(stream=True, terms=terms, seed=2))


def test_while_a_text_is_generated_its_key_is_in_use(models: LanguageModels) -> None:
    terms = Terms(idempotency_key="running")
    first = models.submit(call(terms=terms))

    with pytest.raises(Conflict, match="still running"):
        models.submit(call(terms=terms))
    first.close()

    assert not models.submit(call(terms=terms)).is_replayed


def test_the_records_that_a_server_bounds_are_those_that_count(pool: ModelPool) -> None:
    models = LanguageModels(pool, records=CallRecords(max_bytes=0))
    terms = Terms(idempotency_key="off")
    read(models.submit(call(terms=terms, seed=1)))

    assert not models.submit(call(terms=terms, seed=2)).is_replayed


def test_a_text_that_failed_may_be_generated_again(models: LanguageModels) -> None:
    terms = Terms(idempotency_key="failed")
    long = models.submit(call("many words " * 1000, terms=terms))
    assert isinstance(failure_of(read(long)), PromptTooLong)

    assert isinstance(failure_of(read(models.submit(call("many words " * 1000, terms=terms)))), PromptTooLong)
    assert not models.submit(call(terms=terms)).is_replayed
