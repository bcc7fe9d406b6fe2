"""Calls that another process makes: their answers, window, cancel, and end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue

from corosrv.base.errors import (
    CallCancelled,
    CallRefused,
    ChannelClosed,
    CorosrvError,
    FrameTooLarge,
    NotFound,
    NoWorker,
    ProtocolError,
    QueueFull,
)
from corosrv.contracts.jobs.infer import CapabilityTarget, HandlerCard, InferJob, InferOutputs, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.formats.tensors import Tensor, TensorSpec
from corosrv.workers.dispatch.answers import HandlerReader
from corosrv.workers.wire.calls import ASK_WINDOW, Ask, AskCancel, AskEnd, AskOutputs, AskTaken, WireRequest, WireTensor
from corosrv.workers.wire.descriptors import MIN_ATTACHED
from corosrv.workers.wire.faults import Fault
from corosrv.workers.wire.tensors import TensorPacking, unpack
from corosrv.workers.worker.parent.asks import Asks
from corosrv.workers.worker.parent.call_services import CallAnswers, CallServices, no_delegate, submit_to
from tests.support.descriptors import n_descriptors
from tests.support.function_worker import FunctionCall, FunctionWorker
from tests.support.waiting import wait_until

SEVEN = Tensor("x", "INT32", [1], data=[7])


class Lane:
    """The asking side, with what it was sent."""

    def __init__(self) -> None:
        self.messages: Queue[AskOutputs | AskEnd] = Queue()
        self.tensors: list[Tensor] = []
        self.fault: Exception | None = None

    def send(self, message: AskOutputs | AskEnd, fds: Sequence[int]) -> None:
        if self.fault is not None and isinstance(message, AskOutputs):
            raise self.fault
        if isinstance(message, AskOutputs):
            (tensors,) = unpack([message.outputs], [os.dup(fd) for fd in fds])
            self.tensors += tensors
        self.messages.put(message)

    def next(self) -> AskOutputs | AskEnd:
        return self.messages.get(timeout=5)

    def all(self) -> list[AskOutputs | AskEnd]:
        """Returns what is sent until the first end, with it."""
        messages = [self.next()]
        while not isinstance(messages[-1], AskEnd):
            messages.append(self.next())
        return messages


def echo(call: FunctionCall) -> None:
    call.send(*call.request.inputs, **call.request.parameters)


def wait_for_cancel(call: FunctionCall) -> None:
    Event().wait(60)


def refuse(call: FunctionCall) -> None:
    raise CallRefused("no such colour")


def count(call: FunctionCall) -> None:
    for number in range(100):
        call.send(Tensor("n", "INT32", [1], data=[number]))


@pytest.fixture
def worker() -> FunctionWorker:
    worker = FunctionWorker()
    worker.add(echo, "echo")
    worker.add(wait_for_cancel, "wait")
    worker.add(refuse, "refuse", "3")
    worker.add(count, "count", is_stream=True)
    worker.add(echo, "embedder", capability={"type": "embed", "ctx": 8})
    return worker


@pytest.fixture
def lane() -> Lane:
    return Lane()


@pytest.fixture
def asks(worker: FunctionWorker, lane: Lane) -> Iterator[Asks]:
    asks = Asks(
        CallServices(submit_to(worker)),
        lane.send,
        Terms("anna", "r1", 3, deadline=time.monotonic() + 50, waiting_keys=("k",)),
    )
    with gevent.Timeout(20):
        yield asks
    asks.close()


def ask(number: int, model: str = "echo", *inputs: WireTensor, **details: object) -> Ask:
    return Ask(number, WireRequest(list(inputs), "q", {"loud": True}), model, **details)  # type: ignore[arg-type]


def test_an_ask_is_run_and_answered_with_the_name_of_what_answers(asks: Asks, lane: Lane) -> None:
    with TensorPacking() as packing:
        asks.on_message(ask(1, "echo", *packing.pack([SEVEN])))

    outputs, end = lane.all()
    assert isinstance(outputs, AskOutputs)
    assert (outputs.number, outputs.model, outputs.parameters) == (1, "echo", {"loud": True})
    assert lane.tensors[0].data == [7]
    assert end == AskEnd(1, "echo")
    assert asks.n_running == 0


@pytest.mark.own_process
def test_large_tensors_travel_beside_the_messages_and_leave_nothing_open(asks: Asks, lane: Lane) -> None:
    before = n_descriptors()
    with TensorPacking() as packing:
        tensors = packing.pack([Tensor("x", "UINT8", [5 * MIN_ATTACHED], raw=b"\x07" * 5 * MIN_ATTACHED)])
        (fd,) = packing.fds()
        asks.on_message(ask(1, "echo", *tensors), [os.dup(fd)])

    lane.all()
    assert lane.tensors.pop().raw[-1] == 7
    assert n_descriptors() <= before + 3  # the thread pool's own


def test_an_ask_has_the_terms_of_the_call_that_makes_it(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(
        ask(1, budget_us=90_000_000, priority=2, caller="mallory", idempotency_key="k", owner="o", tier=3, stream=True)
    )
    lane.all()

    job = worker.calls[0].job
    assert (job.target, job.request.id, job.stream) == (ModelTarget("echo"), "q", True)
    assert (job.terms.caller, job.terms.request_id, job.terms.waiting_keys) == ("anna", "r1", ("k",))
    assert (job.terms.priority, job.terms.idempotency_key) == (2, "")
    assert (job.terms.owner, job.terms.tier) == ("", 0)
    assert job.terms.deadline is not None
    assert 40 < job.terms.deadline - time.monotonic() <= 50  # not the longer one that it asked for


def test_an_ask_is_as_urgent_as_the_call_that_makes_it(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(ask(1))
    lane.all()

    assert worker.calls[0].job.terms.priority == 3


def test_an_ask_may_be_given_less_time_than_its_call(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(ask(1, "wait", budget_us=20_000))

    assert lane.next() == AskEnd(
        1, "wait", "", Fault("the call's time is over", 504, "deadline passed", "deadline_exceeded")
    )


def test_the_front_of_clients_says_itself_who_calls(worker: FunctionWorker, lane: Lane) -> None:
    asks = Asks(CallServices(submit_to(worker)), lane.send, is_trusted=True)
    asks.on_message(ask(1, caller="bob", request_id="r2", idempotency_key="k", owner="bob\0a", tier=3))
    lane.all()

    sent = Terms(caller="bob", request_id="r2", idempotency_key="k", owner="bob\0a", tier=3)
    assert worker.calls[0].job.terms == sent


def test_a_capability_is_asked_for_and_named_in_the_answer(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(ask(1, "", capability={"type": "embed"}, prefer={"ctx=8": 2.0}))

    outputs, end = lane.all()
    assert worker.calls[0].job.target == CapabilityTarget({"type": "embed"}, {"ctx=8": 2.0})
    assert isinstance(outputs, AskOutputs)
    assert outputs.parameters["capability"] == '{"type":"embed","ctx":8}'
    assert end == AskEnd(1, "embedder")


def test_an_error_of_the_handler_ends_the_ask_with_its_words(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1, "refuse"))

    assert lane.next() == AskEnd(1, "refuse", "3", Fault("no such colour", 400, "invalid request", "invalid_value"))


def test_an_unknown_model_ends_the_ask(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1, "nobody"))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert (end.fault.status, end.fault.kind, end.model) == (404, "not found", "")


def test_a_tensor_that_is_none_ends_the_ask_and_not_the_lane(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1, "echo", WireTensor("x", "INT32", [2], b"abc")))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert (end.fault.status, end.fault.message) == (400, "tensor 'x' has 3 bytes, where its shape needs 8")


def test_inputs_are_checked_against_the_declarations(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    worker.add(echo, "declared", inputs=[TensorSpec("a", "FP32", [-1])])
    with TensorPacking() as packing:
        asks.on_message(ask(1, "declared", *packing.pack([SEVEN])))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert (end.fault.status, worker.calls) == (400, [])


def test_an_exception_of_ours_is_logged_and_tells_the_asker_nothing(
    lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FunctionWorker):
        def submit(self, job: InferJob) -> FunctionCall:
            raise KeyError("a secret")

    broken = Broken()
    broken.add(echo, "echo")
    Asks(CallServices(submit_to(broken)), lane.send).on_message(ask(1))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert end.fault.status == 500
    assert "secret" not in end.fault.message
    assert "a secret" in caplog.text


def test_at_most_a_window_of_outputs_is_on_its_way(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(ask(1, "count", stream=True))
    received = [lane.next() for _ in range(ASK_WINDOW)]
    gevent.idle()

    assert lane.messages.qsize() == 0
    assert worker.calls[0].n_sent < 100
    asks.on_message(AskTaken(1, 3))
    received += [lane.next() for _ in range(3)]
    gevent.idle()
    assert lane.messages.qsize() == 0
    asks.on_message(AskTaken(1, 100))
    received += lane.all()
    assert [tensor.data for tensor in lane.tensors] == [[number] for number in range(100)]
    assert isinstance(received[-1], AskEnd)


def test_a_cancelled_ask_ends_once(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    asks.on_message(ask(1, "wait"))
    gevent.idle()
    asks.on_message(AskCancel(1))
    asks.on_message(AskCancel(1))

    assert lane.next() == AskEnd(1, "wait", "", Fault("cancelled", 499, "client gone", "cancelled"))
    gevent.idle()
    assert (lane.messages.qsize(), worker.n_running, asks.n_running) == (0, 0, 0)


def test_an_ask_that_is_cancelled_before_it_began_ends(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1, "wait"))
    asks.on_message(AskCancel(1))

    assert isinstance(lane.next(), AskEnd)


def test_an_ask_that_waits_for_room_is_cancelled_and_sends_no_more(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1, "count", stream=True))
    for _ in range(ASK_WINDOW):
        lane.next()
    asks.on_message(AskCancel(1))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert end.fault.status == 499


def test_messages_about_an_ask_that_has_ended_do_nothing(asks: Asks, lane: Lane) -> None:
    asks.on_message(ask(1))
    lane.all()
    asks.on_message(AskCancel(1))
    asks.on_message(AskTaken(1, 1))
    asks.on_message(ask(1))

    assert isinstance(lane.all()[-1], AskEnd)


def test_a_number_that_is_in_use_breaks_the_lane(asks: Asks) -> None:
    asks.on_message(ask(1, "wait"))

    with pytest.raises(ProtocolError, match="ask 1 is running"):
        asks.on_message(ask(1, "wait"))


def test_a_call_may_make_so_many_asks_at_once(worker: FunctionWorker, lane: Lane) -> None:
    asks = Asks(CallServices(submit_to(worker)), lane.send, limit=2)
    for number in range(3):
        asks.on_message(ask(number, "wait"))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert (end.number, end.fault.status, end.fault.kind) == (2, QueueFull.status, "rate limited")
    asks.close()


def test_closing_cancels_all_and_says_nothing(asks: Asks, lane: Lane, worker: FunctionWorker) -> None:
    for number in range(5):
        asks.on_message(ask(number, "wait"))
    gevent.idle()
    assert worker.n_running == 5
    asks.on_message(ask(6, "wait"))  # which has not begun

    asks.close()
    gevent.idle()

    assert (worker.n_running, lane.messages.qsize(), asks.n_running) == (0, 0, 0)


@pytest.mark.parametrize("fault", [ChannelClosed("gone"), FrameTooLarge(9, 8)])
def test_an_answer_that_cannot_be_sent_cancels_its_call(
    asks: Asks, lane: Lane, worker: FunctionWorker, fault: Exception
) -> None:
    lane.fault = fault
    asks.on_message(ask(1, "count", stream=True))

    end = lane.next()
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    assert end.fault.status == 500
    gevent.idle()
    assert worker.n_running == 0


class Peers:
    """Answers by another worker what is given to them, and keeps the errors for which they got it."""

    def __init__(self) -> None:
        self.worker = FunctionWorker()
        self.worker.add(echo, "elsewhere", "2")
        self.worker.add(wait_for_cancel, "waits-elsewhere")
        self.errors: list[CorosrvError] = []

    def delegate(self, job: InferJob, error: CorosrvError) -> CallAnswers | None:
        self.errors.append(error)
        try:
            return self.worker.submit(job)
        except NotFound:
            return None


def test_an_ask_that_could_not_run_here_is_answered_by_a_peer(worker: FunctionWorker, lane: Lane) -> None:
    peers = Peers()
    asks = Asks(CallServices(submit_to(worker), delegate=peers.delegate), lane.send)
    asks.on_message(ask(1, "elsewhere", version="2"))

    outputs, end = lane.all()
    assert isinstance(outputs, AskOutputs)
    assert (outputs.model, outputs.version, outputs.is_final) == ("elsewhere", "2", True)
    assert end == AskEnd(1, "elsewhere", "2")
    assert isinstance(peers.errors[0], NotFound)
    asks.on_message(ask(2, "nowhere"))
    assert fault_of(lane) == str(peers.errors[1])


def test_an_ask_that_has_begun_to_answer_is_not_given_to_a_peer(worker: FunctionWorker, lane: Lane) -> None:
    def break_off(call: FunctionCall) -> None:
        call.send(SEVEN)
        raise NoWorker("the worker has gone")

    worker.add(break_off, "breaks", is_stream=True)
    peers = Peers()
    asks = Asks(CallServices(submit_to(worker), delegate=peers.delegate), lane.send)
    asks.on_message(ask(1, "breaks", stream=True))

    assert fault_of(lane) == "the worker has gone"
    assert peers.errors == []


def test_a_cancel_reaches_the_peer_that_has_the_call(worker: FunctionWorker, lane: Lane) -> None:
    peers = Peers()
    asks = Asks(CallServices(submit_to(worker), delegate=peers.delegate), lane.send)
    asks.on_message(ask(1, "waits-elsewhere"))
    wait_until(lambda: peers.worker.calls, "the peer has the call")
    asks.on_message(AskCancel(1))

    assert fault_of(lane) == "cancelled"
    assert peers.worker.calls[0].n_cancels == 1


def fault_of(lane: Lane) -> str:
    """Waits for an end, and returns its words."""
    end = lane.all()[-1]
    assert isinstance(end, AskEnd)
    assert end.fault is not None
    return end.fault.message


# Short asks of the server's own gRPC process, which take no greenlet while they wait.


class Short:
    """The asks of one lane, and the readers of their calls, which the test drives."""

    def __init__(self, lane: Lane, peers: Peers | None = None) -> None:
        self.readers: list[HandlerReader] = []
        self.n_cancelled = 0
        delegate = no_delegate if peers is None else peers.delegate
        self.asks = Asks(CallServices(self._submit, delegate=delegate), lane.send, is_trusted=True)

    def _submit(self, job: InferJob) -> HandlerReader:
        if job.target == ModelTarget("nobody"):
            raise NotFound("there is no such model", "model_name", "model_not_found")
        reader = HandlerReader(HandlerCard("echo", "2"), self._cancel)
        self.readers.append(reader)
        return reader

    def _cancel(self) -> None:
        self.n_cancelled += 1
        self.readers[-1].end(CallCancelled("cancelled"))


def test_a_short_ask_is_answered_without_a_greenlet(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Short(lane)
    monkeypatch.setattr(gevent, "spawn", lambda *arguments: pytest.fail("a greenlet is started"))
    short.asks.on_message(ask(1))

    (reader,) = short.readers
    reader.add(InferOutputs((SEVEN,), {"n": 1}), 4)
    reader.end(None)

    outputs, end = lane.all()
    assert isinstance(outputs, AskOutputs)
    assert (outputs.model, outputs.version, outputs.parameters, outputs.is_final) == ("echo", "2", {"n": 1}, True)
    assert lane.tensors == [SEVEN]
    assert end == AskEnd(1, "echo", "2")
    assert short.asks.n_running == 0


def test_a_short_ask_whose_answer_comes_before_its_end_has_both(lane: Lane) -> None:
    short = Short(lane)
    short.asks.on_message(ask(1))

    short.readers[0].add(InferOutputs((SEVEN,)), 4)
    assert isinstance(lane.next(), AskOutputs)
    short.readers[0].end(None)

    assert lane.next() == AskEnd(1, "echo", "2")


def test_a_short_ask_that_is_cancelled_or_given_up_cancels_its_call_once(lane: Lane) -> None:
    short = Short(lane)
    short.asks.on_message(ask(1))
    short.asks.on_message(AskCancel(1))

    assert (fault_of(lane), short.n_cancelled) == ("cancelled", 1)
    short.asks.on_message(ask(2))
    short.asks.close()
    gevent.idle()
    assert (lane.messages.qsize(), short.n_cancelled, short.asks.n_running) == (0, 2, 0)


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_short_ask_that_is_given_up_before_its_answer_is_passed_on_cancels_its_call(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, has_waited: bool
) -> None:
    short = Short(lane)
    if not has_waited:  # an answer is there at once
        monkeypatch.setattr(HandlerReader, "on_news", lambda reader, listener: False)
    short.asks.on_message(ask(1))
    short.readers[0].add(InferOutputs((SEVEN,)), 4)
    if has_waited:
        gevent.sleep(0)  # its greenlet is there, and has not begun

    short.asks.close()
    gevent.idle()

    assert (short.n_cancelled, short.readers[0].is_finished, lane.messages.qsize()) == (1, True, 0)


def test_a_short_ask_that_cannot_run_here_goes_to_a_peer(lane: Lane) -> None:
    peers = Peers()
    peers.worker.add(echo, "nobody")
    peers.worker.add(echo, "echo")
    short = Short(lane, peers)
    for number, model in enumerate(("nobody", "echo")):
        short.asks.on_message(ask(number, model))
        if model == "echo":
            short.readers[0].end(NoWorker("no worker is ready"))

        assert [type(message) for message in lane.all()] == [AskOutputs, AskEnd]
    assert [type(error) for error in peers.errors] == [NotFound, NoWorker]


def test_an_answer_of_a_short_ask_that_no_message_holds_is_a_failure(lane: Lane) -> None:
    short = Short(lane)
    short.asks.on_message(ask(1))
    lane.fault = FrameTooLarge(10, 5)
    short.readers[0].add(InferOutputs((SEVEN,)), 4)
    short.readers[0].end(None)

    assert fault_of(lane) == "the parameters of the answer are too large"
