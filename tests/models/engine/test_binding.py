"""The C API as Python sees it: codes are exceptions, and what is wrong is refused in words."""

import math
from collections.abc import Iterator

import msgspec
import pytest

from corosrv.base import errors, waits
from corosrv.contracts.jobs import Finish, Sampling
from corosrv.models.engine import libllama
from corosrv.models.engine.binding import FINGERPRINT, NativeEngine, Options, Synthetic, Task
from tests.support.engines import TIMEOUT

OPTIONS = Options(
    model="",
    synthetic=Synthetic(tokens_per_s=0),
    context=128,
    slots=2,
    queue=4,
    tasks_of_owner=0,
    threads=1,
    step_ms=60,
    reader_bytes=65_536,
)
TASK = Task(tuple(b"Hello"), 4, Sampling(temperature=0), 0, ())


def change(struct, **changes):
    return msgspec.structs.replace(struct, **changes)


def sampling(**changes) -> Task:
    return change(TASK, sampling=Sampling(**{"temperature": 0, **changes}))


@pytest.fixture
def native() -> Iterator[NativeEngine]:
    native = NativeEngine(OPTIONS)
    waits.wait_readable(native.fd, TIMEOUT)
    yield native
    native.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slots": 0}, "slots"),
        ({"batch": 0}, "batch"),
        ({"queue": -1}, "queue"),
        ({"tasks_of_owner": -1}, "tasks_of_owner"),
        ({"context": -1}, "context"),
        ({"context": 0}, "context"),
        ({"step_ms": 0.0}, "step_ms"),
        ({"step_ms": math.nan}, "step_ms"),
        ({"reader_bytes": 0}, "reader_bytes"),
        ({"synthetic": None, "slots": 257, "batch": 512}, "at most 256"),
        ({"synthetic": None, "slots": 4, "batch": 2}, "batch"),
    ],
)
def test_wrong_options_are_refused_in_words(changes, words):
    with pytest.raises(errors.Refused, match=words):
        NativeEngine(change(OPTIONS, **changes))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (change(TASK, tokens=()), "no tokens"),
        (change(TASK, tokens=(-1,)), "unknown token"),
        (change(TASK, tokens=(273,)), "unknown token"),
        (change(TASK, tokens=(1,) * 128), "128 tokens"),
        (change(TASK, max_tokens=-2), "max_tokens"),
        (change(TASK, stops=(b"",)), "stop string"),
        (sampling(temperature=-1), "temperature"),
        (sampling(temperature=math.nan), "temperature"),
        (sampling(temperature=math.inf), "temperature"),
        (sampling(top_k=-1), "top_k"),
        (sampling(top_p=1.1), "top_p"),
        (sampling(top_p=math.nan), "top_p"),
        (sampling(min_p=-0.1), "min_p"),
        (sampling(typical_p=2), "typical_p"),
        (sampling(repeat_penalty=0), "repeat_penalty"),
        (sampling(repeat_penalty=math.inf), "repeat_penalty"),
        (sampling(presence_penalty=math.nan), "presence_penalty"),
        (sampling(frequency_penalty=math.inf), "frequency_penalty"),
        (sampling(repeat_last_n=-2), "repeat_last_n"),
        (sampling(logit_bias=((273, 1.0),)), "logit_bias"),
        (sampling(logit_bias=((1, math.nan),)), "logit_bias"),
    ],
)
def test_a_wrong_task_is_refused_in_words(native, task, words):
    with pytest.raises(errors.Refused, match=words):
        native.submit([TASK, task])

    assert native.stats().waiting == 0


def test_a_job_without_tasks_is_refused(native):
    with pytest.raises(errors.Refused, match="at least one task"):
        native.submit([])


def test_a_full_queue_has_its_own_error(native):
    with pytest.raises(errors.QueueFull):
        native.submit([TASK] * 7)  # two slots, and four may wait


def test_chunks_are_values(native):
    reader = native.submit([TASK])
    chunks = []
    while not (chunks and chunks[-1].finish):
        waits.wait_readable(reader.fd, TIMEOUT)
        chunks += reader.take()
    reader.close()

    assert sum(chunk.n_tokens for chunk in chunks) == 4
    assert (chunks[-1].finish, chunks[-1].prompt_tokens) == (Finish.LENGTH, 5)


@pytest.mark.parametrize("text", [b"", b"x", b"a\0b", "é🌊".encode(), b"\xff\xfe", b"x" * 10_000])
def test_tokens_of_the_synthetic_model_are_bytes(native, text):
    assert native.tokenize(text, True, True) == list(text)


@pytest.mark.parametrize("token", [-1, 273, 2**31 - 1])
def test_an_unknown_token_has_no_text(native, token):
    with pytest.raises(errors.Refused):
        native.token_text(token)


def test_control_tokens_are_spelled_out_when_asked_for(native):
    (end,) = native.control_tokens()

    assert (native.token_text(end), native.token_text(end, special=True)) == (b"", b"<|end|>")


def test_the_model_is_described(native):
    info = native.info()

    assert (info.context, info.n_vocab, info.bos, info.eos, info.ftype) == (128, 273, -1, 272, "synthetic")


def test_a_drained_engine_refuses_with_the_reason(native):
    native.drain("it is late")

    with pytest.raises(errors.ShuttingDown, match="it is late"):
        native.submit([TASK])


def test_a_closed_engine_says_so():
    native = NativeEngine(OPTIONS)
    native.close()
    native.close()

    for call in (native.state, native.info, native.stats, lambda: native.submit([TASK]), lambda: native.drain("x")):
        with pytest.raises(errors.UsedAfterClose):
            call()


class Newer(Options):
    """Returns what Python code hands over that was updated without the extension."""

    later: int = 1


def test_an_extension_older_than_the_code_says_what_to_do():
    with pytest.raises(errors.LibllamaError, match=r"'later'.*make install"):
        NativeEngine(Newer(**msgspec.structs.asdict(OPTIONS)))


def test_the_extension_knows_the_header_it_was_built_with():
    libllama.check_fingerprint(FINGERPRINT)

    assert len(FINGERPRINT) == 64
