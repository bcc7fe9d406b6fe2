"""The plan of a benchmark: its mix, its points, its rounds, its prompts, and when requests begin.

A prompt is plain words, each a token or little more to any tokenizer. It depends on the seed, the round and the
request's number: two servers get the same prompts, and a server that caches prompts never gets one again. Conversations
and traces, of when requests of which sizes came, are read from files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from corosrv.base.errors import BenchError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The words of one client, turn by turn; the server gives the answers between."""

    turns: tuple[str, ...]
    system: str = ""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace: its seconds from the first one, and the tokens of its prompt and of its answer."""

    at: float
    n_input: int
    n_output: int


class _Turn(msgspec.Struct):
    role: str
    content: str | None = None


class _PromptLine(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Turn] = []


class _TraceLine(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int


def read_dialogues(path: Path) -> tuple[Dialogue, ...]:
    """Reads JSON lines: texts, objects with `prompt`, or with `messages`, whose answers are left out.

    Raises BenchError, which names the line.
    """
    dialogues = tuple(_dialogue(line) for line in _lines(path, str | _PromptLine))
    for number, dialogue in enumerate(dialogues, 1):
        if not dialogue.turns or not all(dialogue.turns):
            raise BenchError(f"{path}, line {number}: a text, a `prompt`, or `messages` of a user are wanted")
    return dialogues


def _dialogue(line: str | _PromptLine) -> Dialogue:
    if isinstance(line, str):
        return Dialogue((line,))
    if line.prompt is not None:
        return Dialogue((line.prompt,))
    texts = {role: [turn.content or "" for turn in line.messages if turn.role == role] for role in ("system", "user")}
    return Dialogue(tuple(texts["user"]), "\n\n".join(texts["system"]))


def read_trace(path: Path, rate: float = 0.0) -> tuple[TracedRequest, ...]:
    """Reads JSON lines with `timestamp` (ms), `input_length` and `output_length`, as published traces have them.

    `rate`: requests a second to which the recorded times are stretched. Raises BenchError.
    """
    lines = list(_lines(path, _TraceLine))
    first, last = (each(line.timestamp for line in lines) for each in (min, max))
    if any(line.input_length < 1 or line.output_length < 1 for line in lines):
        raise BenchError(f"{path}: a request has no token to read, or none to write")
    if rate and last == first:
        raise BenchError(f"{path}: all requests have the same timestamp, which --rate cannot stretch")
    scale = (len(lines) - 1) / rate / (last - first) if rate else 0.001
    requests = (
        TracedRequest(scale * (line.timestamp - first), line.input_length, line.output_length) for line in lines
    )
    return tuple(sorted(requests, key=lambda request: request.at))


def _lines(path: Path, kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    yield decoder.decode(line)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}, line {number}: {error}") from None
    if not number:
        raise BenchError(f"{path} is empty")


MIN_REQUESTS = 8  # of a round, unless --requests is given
GOODPUT_REQUESTS, GOODPUT_S = 50, 10.0  # of a round that looks for the goodput, at least


class Mix(str, Enum):
    SHORT = "short"
    LONG = "long"
    SHARED = "shared"
    ARRIVALS = "arrivals"
    FILE = "file"  # --prompts
    TRACE = "trace"  # --trace


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a sweep: so many clients, each sending its next request when the last is answered (closed loop), or
    requests at random moments, `rate` a second, whether or not others are answered (open loop).

    The mix `arrivals` has both: clients that keep streams running, and long prompts that arrive at the rate.
    """

    clients: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        clients = f"{self.clients} client{'s' if self.clients != 1 else ''}" if self.clients else ""
        rate = f"{self.rate:g} requests/s" if self.rate else ""
        return ", ".join(filter(None, (clients, rate))) or "as recorded"


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """Limits that a request has to keep so that it counts for the goodput, in seconds; 0: no limit.

    `itl`: of the mean time between its tokens, as a reader sees them.
    """

    ttft: float = 0.0
    itl: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.ttft or self.itl)

    @property
    def words(self) -> str:
        limits = {"TTFT": self.ttft, "ITL": self.itl}
        return ", ".join(f"{name} {1000 * limit:g} ms" for name, limit in limits.items() if limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A whole benchmark, for one server or for two in turn."""

    mix: Mix = Mix.SHORT
    points: tuple[Point, ...] = (Point(clients=1),)
    rounds: int = 5
    warmup: int = 1  # rounds before those that count
    requests: int | None = None  # of one round; None: one for each client, at least MIN_REQUESTS
    tokens: int = 64
    temperature: float = 0.8
    seed: int = 1
    is_chat: bool = True
    is_forced: bool = True  # asks for exactly `tokens` tokens, by ignore_eos
    timeout: float = 600.0
    processes: int = 1
    extra: dict[str, Any] = field(default_factory=dict)  # more members of the bodies
    turns: int = 1  # of a conversation, each with the answers before it
    dialogues: tuple[Dialogue, ...] = ()  # of the mix `file`
    trace: tuple[TracedRequest, ...] = ()  # of the mix `trace`
    limits: LatencyLimits = LatencyLimits()
    finds_goodput: bool = False  # begins at the point's rate, and ends rounds that cannot succeed any more

    def n_requests(self, point: Point) -> int:
        """Returns the number of requests of one round, or of conversations where these have several turns.

        In the mix `arrivals` it is that of the long prompts.
        """
        if self.trace:
            return min(self.requests or len(self.trace), len(self.trace))
        if self.finds_goodput:
            return self.requests or max(GOODPUT_REQUESTS, math.ceil(GOODPUT_S * point.rate))
        return self.requests or max(point.clients if self.mix is not Mix.ARRIVALS else 0, MIN_REQUESTS)


SHORT_WORDS = 24
LONG_WORDS = 1400  # about 1,500 tokens
SYSTEM_WORDS = 370  # about 400 tokens

WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face level office door health person art war history party result change morning reason research girl
    guy moment air teacher force education foot boy age policy music market sense nation plan college interest death
    experience effect use class control field development role effort rate heart drug show leader light voice wife
    police mind price report decision son view relationship town road arm difference value building action season
    society tax director position player record paper space ground form event official matter center couple site
""".split()  # noqa: SIM905  # a list of words reads as words


def n_turns(plan: BenchPlan, index: int) -> int:
    """Returns the turns of conversation `index`: all that a file has of it, unless --turns says fewer."""
    if not plan.dialogues:
        return plan.turns
    n_all = len(plan.dialogues[index % len(plan.dialogues)].turns)
    return min(plan.turns, n_all) if plan.turns > 1 else n_all


def n_tokens(plan: BenchPlan, index: int) -> int:
    """Returns the tokens that request `index` asks for."""
    return plan.trace[index].n_output if plan.trace else plan.tokens


def times(plan: BenchPlan, point: Point, number: int) -> list[float]:
    """Returns the seconds at which the requests of a round are due."""
    n = plan.n_requests(point)
    return [request.at for request in plan.trace[:n]] or poisson(point.rate, n, f"{plan.seed}/{number}")


def system_prompt(plan: BenchPlan, number: int) -> str:
    """Makes the beginning that all requests of a round share; each round has a new one, which has to be computed."""
    chance = random.Random(f"{plan.seed}/{number}/system")
    return "You answer in the words of this list. " + _words(chance, SYSTEM_WORDS)


def user_prompt(plan: BenchPlan, number: int, index: int, is_long: bool, turn: int = 0) -> str:
    """Makes the prompt of request `index` in round `number`, or of a later turn of that conversation."""
    if plan.dialogues:
        return plan.dialogues[index % len(plan.dialogues)].turns[turn]
    later = f"/{turn}" if turn else ""
    chance = random.Random(f"{plan.seed}/{number}/{index}/{'long' if is_long else 'short'}{later}")
    if plan.trace:
        return _words(chance, max(1, round(plan.trace[index].n_input * LONG_WORDS / 1500)))
    if is_long:
        return f"{_words(chance, LONG_WORDS)}. Tell a story with these words."
    return f"{_words(chance, SHORT_WORDS)}. Tell a long story with these words."


def body(
    plan: BenchPlan, model: str, number: int, index: int, is_arriving: bool = False, answers: Sequence[str] = ()
) -> bytes:
    """Makes the JSON of a request. `is_arriving`: a long prompt among running streams; `answers`: to turns before."""
    is_long = is_arriving or plan.mix is Mix.LONG
    *before, user = (user_prompt(plan, number, index, is_long, turn) for turn in range(len(answers) + 1))
    system = system_prompt(plan, number) if plan.mix is Mix.SHARED else ""
    if plan.dialogues:
        system = plan.dialogues[index % len(plan.dialogues)].system
    fields: dict[str, Any] = {
        "model": model,
        **(
            _chat(system, before, answers, user)
            if plan.is_chat
            else {"prompt": f"{system}\n\n{user}" if system else user}
        ),
        "max_tokens": n_tokens(plan, index),
        "temperature": plan.temperature,
        "seed": (plan.seed * 1_000_003 + number * 100_003 + index) % 2**31,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if plan.is_forced else {}),
        **plan.extra,
    }
    return msgspec.json.encode(fields)


def _chat(system: str, before: Sequence[str], answers: Sequence[str], user: str) -> dict[str, Any]:
    turns = [("system", system)] if system else []
    for asked, answer in zip(before, answers, strict=True):
        turns += [("user", asked), ("assistant", answer)]
    return {"messages": [{"role": role, "content": content} for role, content in (*turns, ("user", user))]}


def _words(chance: random.Random, n: int) -> str:
    return " ".join(chance.choices(WORDS, k=n))


def poisson(rate: float, n: int, seed: str) -> list[float]:
    """Returns the seconds at which `n` independent requests arrive, `rate` a second on average."""
    chance = random.Random(seed)
    times: list[float] = []
    seconds = 0.0
    for _ in range(n):
        seconds += chance.expovariate(rate)
        times.append(seconds)
    return times


def in_turn(servers: Sequence[T], number: int) -> list[T]:
    """Returns the servers in the order of round `number`, which alternates so that none is favoured."""
    return list(servers) if number % 2 == 0 else list(reversed(servers))


def share(n: int, part: int, parts: int) -> range:
    """Returns the numbers below `n` that belong to one part; every number belongs to exactly one."""
    return range(part, n, parts)
