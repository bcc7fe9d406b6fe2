"""What a prediction gives back: the real child, over real channels."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, FileOutput, Metric, OutputChunk
from corosrv.workers.wire.messages import Predict
from tests.support.worker_child import ChildProcess, names, write_predictor

PREDICTORS = Path(__file__).parent.parent.parent / "predictors"


@pytest.fixture
def child(sync_child: ChildProcess) -> ChildProcess:
    return sync_child


@pytest.fixture(scope="module")
def streaming_child() -> Iterator[ChildProcess]:
    with ChildProcess(f"{PREDICTORS / 'async_basics.py'}:Streaming") as child:
        child.set_up()
        yield child


@pytest.mark.parametrize(
    ("do", "number", "output"),
    [("echo", 0, "word"), ("items", 2, ["word", "word"]), ("items", 1, ["word"]), ("items", 0, []), ("fail", 0, None)],
)
def test_a_value_is_one_chunk(child: ChildProcess, do: str, number: int, output: Any) -> None:
    heard = child.predict(do=do, text="word", number=number)

    if output is None:
        assert heard.end.error == "ValueError: word"
    else:
        assert heard.chunks == [output]
        assert heard.end == Done("p", heard.end.predict_time, is_stream=False)


def test_a_tuple_is_a_list(child: ChildProcess) -> None:
    assert child.predict(do="twin", text="a").chunks == [["a", "a"]]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_generators_chunks_are_members_of_a_list(child: ChildProcess, number: int) -> None:
    heard = child.predict(do="yields", text="c", number=number)

    assert [(chunk.output, chunk.index) for chunk in heard[:-1]] == [(f"c{at}", at) for at in range(number)]
    assert heard.end.is_stream


def test_chunks_that_no_annotation_foretells_say_so_themselves(child: ChildProcess, tmp_path: Path) -> None:
    source = "async def chunks():\n  yield 1\nasync def run():\n  return chunks()\n"
    with ChildProcess(f"{write_predictor(tmp_path, source)}:run") as async_child:
        async_child.set_up()
        heard = async_child.predict()

    assert child.predict(do="yields", text="c", number=1)[0] == OutputChunk("c0", 0, is_stream=True)
    assert heard[0] == OutputChunk(1, 0, is_stream=True)
    assert heard.end.is_stream


@pytest.mark.parametrize(
    ("name", "output"),
    [("run", [1, 2]), ("awaited", [[1, 2]]), ("iterable", [1, 2]), ("unsaid", "of type async_generator: write `async")],
)
def test_a_plain_function_may_hand_on_async_work(tmp_path: Path, name: str, output: Any) -> None:
    path = write_predictor(
        tmp_path,
        """
from typing import Any, AsyncIterator, AsyncIterable, Coroutine
async def chunks():
    yield 1
    yield 2
async def whole():
    return [chunk async for chunk in chunks()]
class Iterable:
    def __aiter__(self):
        return chunks()
def run() -> AsyncIterator[int]:
    return chunks()
def awaited() -> Coroutine[Any, Any, list[int]]:
    return whole()
def iterable() -> AsyncIterable[int]:
    return Iterable()
def unsaid():
    return chunks()
""",
    )
    with ChildProcess(f"{path}:{name}") as child:
        child.set_up()
        heard = child.predict()

    assert output in heard.end.error if isinstance(output, str) else heard.chunks == output


@pytest.mark.parametrize(
    ("name", "heard"),
    [
        ("joined", (["ab"], False)),
        ("text", (["hello"], False)),
        ("members", (["a", "b"], True)),
        ("model", ([{}], False)),
    ],
)
def test_an_iterator_may_be_promised_and_something_else_be_given(
    tmp_path: Path, name: str, heard: tuple[list[Any], bool]
) -> None:
    path = write_predictor(
        tmp_path,
        """
import functools
from typing import Iterator
class Model:
    def dict(self): return {}
    def __iter__(self): return iter("fields")
def join(function):
    @functools.wraps(function)
    def inner(): return "".join(function())
    return inner
@join
def joined() -> str:
    yield "a"
    yield "b"
def text() -> Iterator[str]: return "hello"
def members() -> Iterator[str]: return ["a", "b"]
def model() -> Iterator[str]: return Model()
""",
    )
    with ChildProcess(f"{path}:{name}") as child:
        child.set_up()
        said = child.predict()

    assert (said.chunks, said.end.is_stream) == heard


def test_a_chunk_is_sent_before_the_generator_goes_on(tmp_path: Path) -> None:
    """One that takes the process down with it, right behind its `yield`."""
    path = write_predictor(
        tmp_path, "import os\nfrom typing import Iterator\ndef run() -> Iterator[str]:\n  yield 'sent'\n  os._exit(3)\n"
    )
    with ChildProcess(f"{path}:run") as child:
        child.set_up()
        child.start()

        assert child.slots[0].receive() == OutputChunk("sent", 0)
        assert child.process.wait(5) == 3


def test_an_async_generator_is_streamed_live(streaming_child: ChildProcess) -> None:
    streaming_child.start(number=2, then="wait")
    heard = streaming_child.await_log("waiting")

    assert heard.chunks == [0, 1]
    streaming_child.cancel()
    rest = streaming_child.hear()
    assert rest.logs == "told\nclosed\n"
    assert isinstance(rest.end, Cancelled)
    assert rest.end.is_stream


def test_an_async_generator_that_fails_keeps_its_chunks(streaming_child: ChildProcess) -> None:
    heard = streaming_child.predict(number=2, then="fail")

    assert heard.chunks == [0, 1]
    assert heard.end.error == "ValueError: after some"


def test_an_async_generator_waits_for_a_server_that_does_not_read(tmp_path: Path) -> None:
    """And the other slots do not."""
    path = write_predictor(
        tmp_path,
        """
from typing import AsyncIterator
async def run(wide: bool) -> AsyncIterator[str]:
    yield "x" * 100
    for _ in range(20 if wide else 0):
        yield "x" * 400_000
""",
    )
    with ChildProcess(f"{path}:run", slots=2) as child:
        child.set_up()
        child.start("wide", wide=True)

        assert child.predict("other", slot=1, wide=False).chunks == ["x" * 100]
        assert [len(chunk) for chunk in child.hear(0).chunks] == [100] + 20 * [400_000]


@pytest.mark.parametrize("number", [1, 20_000])
def test_an_error_that_no_frame_holds_is_cut(child: ChildProcess, number: int) -> None:
    error = child.predict(do="fail_hard", text="x" * 1000, number=number).end.error

    assert error.startswith("ValueError: xxx")
    assert error.endswith("[TRUNCATED]" if number > 1 else "x?")


@pytest.mark.parametrize("number", [0, 2])
def test_a_text_that_json_does_not_have_harms_nobody_else(child: ChildProcess, number: int) -> None:
    assert isinstance(child.predict(do="surrogate", number=number).end, Done | Failed)

    assert child.predict(do="echo", text="well").chunks == ["well"]


def test_nothing_follows_the_end(child: ChildProcess) -> None:
    """Though threads record on and on."""
    for number in range(50):
        heard = child.predict(f"p{number}", do="records_to_the_last", number=100)

        assert isinstance(heard.end, Done)
        assert set(names(child.predict("next", do="echo"))) == {"OutputChunk", "Done"}


def test_the_predictor_lives_on(child: ChildProcess) -> None:
    [before] = child.predict(do="count").chunks

    assert child.predict(do="count").chunks == [before + 1]


def test_the_context_is_readable(child: ChildProcess, async_child: ChildProcess) -> None:
    assert child.predict(do="context", context={"a": "b"}).chunks == [{"a": "b"}]
    assert child.predict(do="context").chunks == [{}]
    assert async_child.predict(do="context", context={"c": "d"}).chunks == [{"c": "d"}]


def test_setup_and_predictions_share_a_loop(async_child: ChildProcess) -> None:
    assert async_child.predict(do="loop_is_the_same").chunks == [True]


def test_coroutines_run_at_once(async_child: ChildProcess) -> None:
    for slot in range(8):
        async_child.start(f"p{slot}", slot=slot, do="forever")
    for slot in range(8):
        async_child.await_log("waiting", slot)

    for slot in range(8):
        async_child.cancel(f"p{slot}", slot)

    assert {type(async_child.hear(slot).end) for slot in range(8)} == {Cancelled}


def test_leaving_ends_the_prediction_and_no_more(child: ChildProcess, async_child: ChildProcess) -> None:
    assert child.predict(do="leave", number=3).end.error == "SystemExit: 3"
    assert isinstance(async_child.predict(do="leaves").end, Done | Failed)
    assert isinstance(child.predict(do="echo").end, Done)
    assert isinstance(async_child.predict(do="echo").end, Done)


def test_an_errors_traceback_is_in_the_servers_log_from_the_authors_code_on(child: ChildProcess) -> None:
    heard = child.predict("p7", do="fail", text="why")

    assert heard.end.error == "ValueError: why"
    assert heard.logs == "before\n"
    child.await_server_log("ValueError: why\n")
    assert 'prediction p7 failed: Traceback (most recent call last):\n  File "' in child.server_log
    assert "/corosrv/" not in child.server_log


def test_a_large_input_is_read_from_its_file(child: ChildProcess, tmp_path: Path) -> None:
    (tmp_path / "input").write_text(json.dumps({"do": "echo", "text": "from the file"}))

    child.slots[0].send(Predict("p", str(tmp_path), input_file=str(tmp_path / "input")))

    assert child.hear().chunks == ["from the file"]


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_input_file_that_cannot_be_read_fails_the_prediction(
    child: ChildProcess, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "input").write_text(content)

    child.slots[0].send(Predict("p", str(tmp_path), input_file=str(tmp_path / "input")))

    assert child.hear().end.error.startswith("InputFailed: the input cannot be read")


def test_a_large_output_goes_through_a_file(child: ChildProcess, tmp_path: Path) -> None:
    child.slots[0].send(Predict("p", str(tmp_path), {"do": "items", "text": "x" * 1000, "number": 7000}))

    heard = child.hear()

    assert names(heard) == ["FileOutput", "Done"]
    assert isinstance(heard[0], FileOutput)
    assert heard[0].kind == "oversized"


def test_files_and_secrets_are_what_their_authors_expect(tmp_path: Path) -> None:
    path = write_predictor(
        tmp_path,
        """
from corosrv.worker import Path, Secret
def run(file: Path, word: Secret) -> Path:
    print(word, file.read_text(), word.get_secret_value())
    made = Path("made.txt")
    made.write_text("made here")
    return made
""",
    )
    with ChildProcess(f"{path}:run", cwd=tmp_path) as child:
        child.set_up()
        child.slots[0].send(Predict("p", str(tmp_path), {"file": "data:text/plain;base64,aGk=", "word": "open"}))

        heard = child.hear()

    assert heard.logs == "********** hi open\n"
    assert names(heard) == ["LogLine", "FileOutput", "Done"]
    assert not list(tmp_path.glob("inputs/*"))


def test_a_download_that_hangs_is_cancelled(tmp_path: Path) -> None:
    path = write_predictor(
        tmp_path, "from corosrv.worker import Path\nasync def run(file: Path) -> str: return 'never'"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent, ChildProcess(f"{path}:run") as child:
        silent.settimeout(10)
        child.set_up()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        child.slots[0].send(Predict("p", str(tmp_path), {"file": url}))
        connection, _ = silent.accept()
        with connection:
            child.cancel()

            assert names(child.hear()) == ["Cancelled"]


def test_metrics_go_out_as_they_are_recorded(tmp_path: Path) -> None:
    path = write_predictor(
        tmp_path,
        """
from corosrv.worker import BasePredictor, current_scope
current_scope().record_metric("import", 1)
class P(BasePredictor):
    def setup(self):
        self.record_metric("setup", 1)
    def run(self) -> None:
        self.record_metric("tokens", 2)
        self.record_metric("tokens", 3, mode="incr")
        self.scope.metrics["a.b"] = True
        del self.scope.metrics["a.b"]
        self.scope.metrics.record("list", 1, mode="append")
        try:
            self.record_metric("tokens.more", 1)
        finally:
            print("raised")
""",
    )
    with ChildProcess(f"{path}:P") as child:
        child.set_up()

        heard = child.predict()

        assert [message for message in heard if isinstance(message, Metric)] == [
            Metric("tokens", 2),
            Metric("tokens", 3, "increment"),
            Metric("a.b", True),
            Metric("a.b", None),
            Metric("list", 1, "append"),
        ]
        assert heard.end.error.startswith("ValueError: metric 'tokens' cannot hold a value and be the parent")
        assert names(child.predict())[0] == "Metric"  # nothing is left of the one before
