"""Answers of every kind over an engine that is killed at each of their tokens: `engine_crashes --tokens 40`.

All kinds are asked for at once, each on a connection of its own, and SIGKILL ends the engine as soon as one of them has
so many tokens, several times in an answer: each of the others is then behind a token of its own, which is noted. Again
and again, until there is no token left at which an answer has not lost its engine.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serve.server import APP, Server, servers
from tests.serve.wire import CHAT, chat, request
from tests.support.waiting import eventually

N_WORKERS = 2
MESSAGES = "/v1/messages"
PATIENCE = 240.0  # seconds that an answer may take over a death
N_DEATHS = 6  # of the engine, over which an answer goes
N_TOKENS = 48  # of answers that nothing else ends
STORY = "Tell a long story about a lighthouse and the sea."
SAID = {"type": "string", "minLength": 70, "maxLength": 90}
FACTS = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}, "story": SAID},
    "required": ["name", "age", "story"],
    "additionalProperties": False,
}
REPORT = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 20}, "news": SAID},
    "required": ["place", "news"],
    "additionalProperties": False,
}
OPENAI_TOOLS = [{"type": "function", "function": {"name": "report", "description": "Reports.", "parameters": REPORT}}]
ANTHROPIC_TOOLS = [{"name": "report", "description": "Reports.", "input_schema": REPORT}]


def told(**fields: Any) -> dict[str, Any]:
    greedy = {"max_tokens": N_TOKENS, "temperature": 0, "seed": 5, "ignore_eos": True, "cache_prompt": False}
    return chat(STORY, **{**greedy, "stream": True, "stream_options": {"include_usage": True}, **fields})


def formed(**fields: Any) -> dict[str, Any]:
    return told(max_tokens=200, ignore_eos=False, **fields)


def message(**fields: Any) -> dict[str, Any]:
    return chat(STORY, **{"model": "any", "max_tokens": N_TOKENS, "temperature": 0, "stream": True, **fields})


SCHEMA = {"type": "json_schema", "json_schema": {"name": "facts", "schema": FACTS}}
FORCED = {"tools": OPENAI_TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (CHAT, told()),
    "seeded, temperature 0.9": (CHAT, told(temperature=0.9)),
    "JSON schema": (CHAT, formed(response_format=SCHEMA, temperature=0.9)),
    "tool call": (CHAT, formed(**FORCED)),
    "n=2": (CHAT, told(n=2, temperature=0.9)),
    "log probabilities": (CHAT, told(temperature=0.9, logprobs=True, top_logprobs=3)),
    "prompt and text, scored": (
        "/v1/completions",
        {name: value for name, value in told(echo=True, logprobs=2).items() if name != "messages"} | {"prompt": STORY},
    ),
    "Anthropic's": (MESSAGES, message()),
    "Anthropic's tool call": (
        MESSAGES,
        message(max_tokens=200, tools=ANTHROPIC_TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}),
    ),
}
# Of these nobody can count the tokens; they are asked for beside the others.
WHOLE_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "in one piece, n=2": (CHAT, told(n=2, temperature=0.9, stream=False, stream_options=None)),
    "in one piece, Anthropic's": (MESSAGES, message(stream=False)),
}
STOPPED = "stop string"  # which one is known when the greedy text is
OF_ONE_ANSWER = {"id", "created", "timings", "call_id", "tool_use_id"}  # differ between any two answers


@dataclass
class Row:
    """What came of one kind of answer. Any thread."""

    n_tokens: int  # that can be counted: events with a part of the answer
    killed_at: set[int] = field(default_factory=set)  # tokens that had been read
    n_kills: int = 0
    differences: list[str] = field(default_factory=list)

    def missing(self, tokens: Collection[int]) -> list[int]:
        return sorted({at for at in tokens if at <= self.n_tokens} - self.killed_at)


class Killer:
    """Ends the engine whenever one answer has one of some numbers of tokens. Any thread."""

    def __init__(self, server: Server, target: str = "", at: Collection[int] = ()) -> None:
        self._server = server
        self._target, self._at = target, at
        self._killed = 0  # the last one's process
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self.seen: list[dict[str, int]] = []  # tokens of the answers that ran, each time that it was ended

    def note(self, kind: str, n_tokens: int) -> None:
        with self._lock:
            self._running[kind] = n_tokens
            # Two tokens of one engine may be read at once: it is killed at the first of them.
            if kind == self._target and n_tokens in self._at and (engine := self._server.engine).pid != self._killed:
                engine.kill()
                self._killed = engine.pid
                self.seen.append(dict(self._running))

    def end(self, kind: str) -> None:
        with self._lock:
            self._running.pop(kind, None)


def parts(event: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an event adds to its answer, each part with its place in it."""
    for choice in event.get("choices", ()):
        at = f"choice {choice['index']}"
        delta = choice.get("delta") or {"content": choice.get("text")}
        yield f"{at} text", delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            yield f"{at} call {call['index']}", (function.get("name") or "") + (function.get("arguments") or "")
        yield from ((f"{at} {name}", told) for name, told in (choice.get("logprobs") or {}).items())
        yield f"{at} finish", choice["finish_reason"] or ""
    delta = event.get("delta") or {}
    if "index" in event:
        yield f"block {event['index']}", (event.get("content_block") or {}).get("name", "")
        yield f"block {event['index']}", delta.get("text", "") + delta.get("partial_json", "")
    yield "stop", [delta[name] for name in ("stop_reason", "stop_sequence") if name in delta]
    yield "usage", [without_names(event["usage"])] if event.get("usage") else []
    yield "error", [event["error"]] if "error" in event else []


def put_together(answer_events: Iterable[Any]) -> dict[str, Any]:
    """Returns an answer as its parts by their places, however it was cut into events."""
    whole: dict[str, Any] = {}
    for event in answer_events:
        for place, part in parts(event):
            if part:
                whole[place] = whole[place] + part if place in whole else part
    return whole


def is_token(event: Any) -> bool:
    """Returns whether an event has a part of the text or of a call."""
    return any(part for place, part in parts(event) if place.startswith(("choice 0 text", "choice 0 call", "block")))


def without_names(value: Any) -> Any:
    """Returns an answer without what differs between any two, and with all of a prompt's tokens in one number."""
    if isinstance(value, dict):
        left = {name: without_names(part) for name, part in value.items() if name not in OF_ONE_ANSWER}
        if "input_tokens" in left:
            left["input_tokens"] += left.pop("cache_read_input_tokens", 0)
        return left
    return [without_names(part) for part in value] if isinstance(value, list) else value


def ask(server: Server, kind: str, path: str, body: dict[str, Any], killer: Killer) -> tuple[Any, int]:
    """Returns an answer without what differs between any two, and the number of its tokens that can be counted."""
    with server.connect(timeout=PATIENCE) as connection:
        killer.note(kind, 0)
        connection.send(request("POST", path, body))
        head = connection.head()
        assert head.status == 200, f"{kind} is refused: {b''.join(connection.body(head))[:300]!r}"
        if not body["stream"]:
            whole = json.loads(b"".join(connection.body(head)))
            killer.end(kind)
            return without_names(whole), 0
        found: list[Any] = []
        n_tokens = 0
        for piece in connection.body(head):
            for line in piece.splitlines():
                if line.startswith(b"data: {"):
                    found.append(json.loads(line[6:]))
                    if is_token(found[-1]):
                        n_tokens += 1
                        killer.note(kind, n_tokens)
        killer.end(kind)
        return put_together(found), n_tokens


class Sweep:
    """Asks for answers of some kinds again and again while the engine is killed, and compares them."""

    def __init__(self, server: Server, kinds: Collection[str]) -> None:
        """Asks for each kind once, alone; a stop string is taken from the greedy text."""
        self._server = server
        self._chance = random.Random(0)
        self._right: dict[str, Any] = {}
        self.rows: dict[str, Row] = {}
        self._kinds = {kind: asked for kind, asked in (KINDS | WHOLE_KINDS).items() if kind in kinds}
        for kind in self._kinds:
            self._learn(kind)
        if STOPPED in kinds:
            self._kinds[STOPPED] = (CHAT, told(stop=[self._right["greedy"]["choice 0 text"][-16:-6]]))
            self._learn(STOPPED)
            assert self._right[STOPPED]["choice 0 finish"] == "stop"

    def _learn(self, kind: str) -> None:
        self._right[kind], n_tokens = ask(self._server, kind, *self._kinds[kind], Killer(self._server))
        self.rows[kind] = Row(n_tokens)

    def kill_at_all(self, tokens: Collection[int]) -> None:
        """Kills the engine until that has happened at each of so many tokens of each answer. Waits."""
        while missing := {kind: left for kind, row in self.rows.items() if (left := row.missing(tokens))}:
            target = max(missing, key=lambda kind: len(missing[kind]))
            beside = WHOLE_KINDS.keys() & self._kinds.keys() if len(missing) > 2 else set()
            at = self._chance.sample(missing[target], min(N_DEATHS, len(missing[target])))
            self.kill_at(at, target, {*missing, *beside})

    def kill_at(self, tokens: Collection[int], target: str, kinds: Collection[str] = ()) -> None:
        """Asks for some kinds, or for all, and kills the engine at these tokens of one of the answers. Waits."""
        killer = Killer(self._server, target, tokens)
        asked = sorted(kinds or self._kinds)
        with ThreadPoolExecutor(len(asked)) as threads:
            answers = {kind: threads.submit(ask, self._server, kind, *self._kinds[kind], killer) for kind in asked}
        for kind, answer in answers.items():
            self._compare(kind, answer.result()[0], [seen[kind] for seen in killer.seen if kind in seen])
        assert killer.seen, f"{target} has none of these tokens: {tokens}"

    def _compare(self, kind: str, answer: Any, killed_at: list[int]) -> None:
        row, right = self.rows[kind], self._right[kind]
        row.n_kills += len(killed_at)
        row.killed_at |= set(killed_at)
        if answer != right:
            wrong = [
                f"{name}: {answer.get(name)!r} in place of {right.get(name)!r}"
                for name in sorted({*answer, *right})
                if answer.get(name) != right.get(name)
            ]
            row.differences.append(f"killed at {killed_at}: {'; '.join(wrong)}")

    def table(self) -> Iterator[str]:
        """Yields the lines of a table of what was killed and what differs."""
        yield f"{'answer':28} {'tokens':>6} {'kills':>6}  {'differences':>11}  killed at"
        for kind, row in self.rows.items():
            at = spans(row.killed_at) if row.n_tokens else "not known"
            yield f"{kind:28} {row.n_tokens or '':>6} {row.n_kills:>6}  {len(row.differences):>11}  {at}"
        for kind, row in self.rows.items():
            yield from (f"{kind}: {difference}" for difference in row.differences)


def spans(numbers: Iterable[int]) -> str:
    """Writes numbers as spans, such as 1-3, 7."""
    by_offset: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(sorted(numbers)):
        by_offset[number - place].append(number)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in by_offset.values())


@contextmanager
def sweeping(
    folder: Path, model: str = "", kinds: Collection[str] = (*KINDS, STOPPED, *WHOLE_KINDS)
) -> Iterator[Sweep]:
    """Runs a server of several workers before one engine, and asks it for each kind of answer once.

    `model`: a file; the packaged one if there is none, for what a synthetic one draws has nothing to do with a seed.
    """
    run_dir = tempfile.mkdtemp(prefix="corosrv-")  # a short path: that of a socket must fit
    settings = {"slots": 16, "ctx": 512, "threads": 1, "deterministic": 1}
    try:
        with servers(folder, folder) as started:
            server = started.start(*APP, "-w", str(N_WORKERS), run_dir=run_dir, model=model, **settings)
            eventually(lambda: server.log.count(": loaded") == N_WORKERS, 60, "all workers")
            yield Sweep(server, kinds)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def kill_at_tokens(tokens: range, model: str) -> None:
    """Prints a table of answers over deaths of their engine. Raises AssertionError where one is not what it was."""
    with tempfile.TemporaryDirectory() as folder, sweeping(Path(folder), model) as sweep:
        sweep.kill_at_all(tokens)
        print("\n".join(sweep.table()))
        assert not any(row.differences for row in sweep.rows.values())
