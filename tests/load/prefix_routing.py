"""Measures what each policy makes of the upstreams' prompt caches: `python -m tests.load.prefix_routing`.

Conversations that grow by a turn at a time, with a few system prompts among them, go through a real dispatcher and the
real policies to upstreams that are simulated: each has a cache of blocks that is bounded and forgets what was used
longest ago, and computes what it does not hold. Nothing is random but by the seed, and no time passes.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from corosrv.contracts.jobs.infer import ForwardRequest, InferJob, ModelTarget
from corosrv.contracts.jobs.terms import Terms
from corosrv.fleet.upstreams.policies import POLICY_NAMES, make_policy
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from corosrv.workers.dispatch.policy import DispatchSettings
from tests.workers.dispatch.hosts import FakeCall, FakeClock, FakeHost, card

MODEL = card("chat", platform="upstream", is_stream=True, is_idempotent=True, max_queue=100_000, slo_ms=600_000)
BLOCK = 16  # bytes; about what vLLM shares in tokens, had a token one byte
LETTERS = bytes(range(97, 123)) + b"    "


@dataclass(frozen=True, kw_only=True)
class Load:
    """Says what is simulated. Times are in seconds, sizes in bytes."""

    users: int = 64
    systems: int = 4
    turns: int = 8
    upstreams: int = 4
    concurrency: int = 8
    system_bytes: int = 1000
    question_bytes: int = 150
    answer_bytes: int = 400  # on average
    cache_bytes: int = 128 << 10  # of each upstream
    reading_speed: float = 4000.0  # bytes of a prompt that an upstream computes in a second
    answer_speed: float = 120.0  # bytes of an answer that it makes in a second
    think: float = 10.0  # between an answer and its user's next question, on average
    seed: int = 1


class PromptCache:
    """What one upstream holds of the texts that it has read and written: the oracle that policies are measured by."""

    def __init__(self, max_bytes: int) -> None:
        self._max_blocks = max_bytes // BLOCK
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, text: bytes) -> None:
        # The last block first: of two texts that begin alike, the end of the one used longest ago is forgotten first.
        for digest in reversed(list(_block_digests(text))):
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def n_known(self, text: bytes) -> int:
        """Returns the length of the beginning that it holds."""
        return BLOCK * sum(1 for _ in itertools.takewhile(self._blocks.__contains__, _block_digests(text)))


def _block_digests(text: bytes) -> Iterator[int]:
    digest = 0
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        digest = hash((digest, text[start : start + BLOCK]))
        yield digest


class Events:
    """What happens next, in the time of a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._serials = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (self.clock.now + seconds, next(self._serials), action))

    def run(self) -> None:
        while self._heap:
            at, _, action = heapq.heappop(self._heap)
            self.clock.pass_time(at - self.clock.now)
            action()


class SimulatedUpstream(FakeHost):
    """Reads prompts, as far as it does not know them, and writes answers; each call at the speed of a lonely one."""

    def __init__(self, id: str, simulation: Simulation) -> None:
        super().__init__(id, [MODEL], n_slots=simulation.load.concurrency)
        self.cache = PromptCache(simulation.load.cache_bytes)
        self._simulation = simulation

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        running = super().start_call(permit, call, listener)
        simulation, load = self._simulation, self._simulation.load
        item = call.items[0]
        assert isinstance(item.request, ForwardRequest)
        prompt = item.request.prompt
        n_known = self.cache.n_known(prompt)
        self.cache.add(prompt)
        conversation = simulation.conversations[int(item.request_id)]
        reading = (len(prompt) - n_known) / load.reading_speed
        simulation.count_start(conversation, len(prompt), n_known, reading)
        answer = conversation.words(round(load.answer_bytes * conversation.random.uniform(0.25, 1.75)))
        simulation.events.after(
            reading + len(answer) / load.answer_speed, lambda: self._answer(running, conversation, answer)
        )
        return running

    def _answer(self, running: FakeCall, conversation: Conversation, answer: bytes) -> None:
        conversation.text += answer
        self.cache.add(conversation.text)
        running.end(0)
        self._simulation.think(conversation)


@dataclass(eq=False)
class Conversation:
    """One user's."""

    number: int
    text: bytes
    random: random.Random
    n_turns: int = 0
    asked_at: float = 0.0

    def words(self, n_bytes: int) -> bytes:
        return bytes(self.random.choices(LETTERS, k=n_bytes))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a policy. Times are in seconds."""

    share: float  # of the prompts' bytes that their upstream held
    n_calls: Sequence[int]  # of each upstream
    first_bytes: Sequence[float]  # times from a question to the first byte of its answer
    seconds: float

    @property
    def spread(self) -> float:
        """How many calls the busiest upstream had for each that was its due."""
        return max(self.n_calls) / statistics.mean(self.n_calls)


class Simulation:
    """All conversations under one policy, from their first question to their last answer."""

    def __init__(self, policy: str, load: Load) -> None:
        self.load = load
        self.events = Events()
        self._random = random.Random(load.seed)
        clock = self.events.clock
        self.dispatcher = Dispatcher(
            DispatchSettings(max_calls=100_000, max_bytes=1 << 40), clock, clock.make_alarm,
            policy=make_policy(policy, clock, random.Random(load.seed).random),
        )  # fmt: skip
        self.upstreams = [SimulatedUpstream(f"upstream-{number}", self) for number in range(load.upstreams)]
        systems = [bytes(self._random.choices(LETTERS, k=load.system_bytes)) for _ in range(load.systems)]
        self.conversations = [
            Conversation(number, systems[number % load.systems], random.Random(f"{load.seed} {number}"))
            for number in range(load.users)
        ]
        self._n_bytes = self._n_known = 0
        self._first_bytes: list[float] = []

    def run(self) -> Result:
        for upstream in self.upstreams:
            assert self.dispatcher.add_host(upstream)
        for conversation in self.conversations:
            self.think(conversation)
        began = self.events.clock.now
        self.events.run()
        assert len(self._first_bytes) == self.load.users * self.load.turns
        return Result(
            share=self._n_known / self._n_bytes,
            n_calls=[upstream.n_started for upstream in self.upstreams],
            first_bytes=self._first_bytes,
            seconds=self.events.clock.now - began,
        )

    def think(self, conversation: Conversation) -> None:
        if conversation.n_turns < self.load.turns:
            seconds = conversation.random.expovariate(1 / self.load.think) if self.load.think else 0.0
            self.events.after(seconds, lambda: self._ask(conversation))

    def _ask(self, conversation: Conversation) -> None:
        conversation.n_turns += 1
        conversation.asked_at = self.events.clock.now
        conversation.text += conversation.words(self.load.question_bytes)
        terms = Terms(request_id=str(conversation.number), session=f"conversation {conversation.number}")
        self.dispatcher.submit(InferJob(ModelTarget("chat"), ForwardRequest(prompt=conversation.text), True, terms))

    def count_start(self, conversation: Conversation, n_bytes: int, n_known: int, reading: float) -> None:
        self._n_bytes += n_bytes
        self._n_known += n_known
        self._first_bytes.append(self.events.clock.now - conversation.asked_at + reading)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, value in vars(Load()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    load = Load(**vars(parser.parse_args()))
    print("policy         known  calls of each upstream      spread  first byte p50   p95  all done")
    for policy in POLICY_NAMES:
        print(row(policy, Simulation(policy, load).run()), flush=True)


def row(policy: str, result: Result) -> str:
    """Returns the line of the table that tells of one policy."""
    cuts = statistics.quantiles(result.first_bytes, n=20)
    counts = " ".join(f"{n:5}" for n in sorted(result.n_calls, reverse=True))
    return (
        f"{policy:13} {result.share:6.1%}  {counts:26}  {result.spread:6.2f}  {cuts[9]:12.2f} s {cuts[18]:5.2f} s"
        f"  {result.seconds:6.1f} s"
    )


if __name__ == "__main__":
    main()
