"""Decodes a few tokens with libllama, and compares them with those of corosrv's own kernels: the probe's child process.

Whatever dies here dies in a process that nobody waits for but the probe. What differs is printed in a line.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from corosrv.engine.binding import NativeEngine, Options, Task, TaskKind
from corosrv.engine.probe import TrialStatus
from corosrv.errors import CorosrvError
from corosrv.jobs import Sampling, TokenInfo
from corosrv.waits import wait_readable

N_TOKENS = 8  # of each text that is drawn
N_LIKELIEST = 20  # tokens that are compared where two texts part
TIE = 1.0  # nats between two tokens that rounding may put in either order
MAX_DISTANCE = 0.1  # of two vectors, as part of their length: rounding moves them by a hundredth
_PROMPT = b"The quick brown fox jumps over the lazy dog. " * 2


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """Holds a model's answer to the prompt: tokens of a text with their likeliest alternatives, or a vector."""

    tokens: Sequence[TokenInfo] = ()
    vector: Sequence[float] = ()


def difference(own: TrialAnswer, reference: TrialAnswer) -> str:
    """Describes what own kernels compute otherwise than the reference; empty where rounding explains all of it."""
    if reference.vector:
        distance = math.dist(own.vector, reference.vector) / (math.hypot(*reference.vector) or 1.0)
        # Written so that a distance that is no number differs as well.
        return "" if distance <= MAX_DISTANCE else f"vectors lie {distance:.2g} of their length apart"
    for place, (one, other) in enumerate(zip(own.tokens, reference.tokens, strict=False), 1):
        if one.id == other.id:
            continue
        rivals = {candidate.id: candidate.logprob for candidate in other.top}
        if one.id in rivals and other.logprob is not None and other.logprob - rivals[one.id] <= TIE:
            return ""  # behind a tie the two texts have nothing in common
        return f"token {place} is {_words(one)} and not {_words(other)}"
    if len(own.tokens) != len(reference.tokens):
        return f"{len(own.tokens)} tokens and not {len(reference.tokens)}"
    return ""


def _words(token: TokenInfo) -> str:
    return repr(token.piece.decode(errors="replace"))


def draw(model: str, safe: bool, kernels: str, n_threads: int) -> tuple[TrialAnswer, bool] | None:
    """Opens a model and lets it answer; returns that and whether corosrv's own kernels computed it.

    Returns None where the model cannot be loaded, which the real load says in words.
    """
    options = Options(
        model=model, synthetic=None, context=128, slots=2, queue=8, tasks_of_owner=0, threads=n_threads, step_ms=60.0,
        reader_bytes=65_536, safe_load=safe, kernels=kernels,
    )  # fmt: skip
    engine = NativeEngine(options)
    try:
        wait_readable(engine.fd)
        if engine.state()[0] != "ready":
            return None
        info = engine.info()
        kind = TaskKind.GENERATE if info.generates else TaskKind.RANK if info.pooling == "rank" else TaskKind.EMBED
        return _answer(engine, kind), bool(info.own_kernels)
    finally:
        engine.close()


def _answer(engine: NativeEngine, kind: TaskKind) -> TrialAnswer:
    """Runs the prompt twice in one batch, and returns the first answer."""
    prompt = engine.tokenize(_PROMPT, True, False)[:64]
    n_probs = N_LIKELIEST if kind is TaskKind.GENERATE else -1
    task = Task(prompt, N_TOKENS, Sampling(temperature=0, ignore_eos=True, n_probs=n_probs), kind=kind)
    reader = engine.submit([task] * 2)
    tokens: list[TokenInfo] = []
    n_finished, vector = 0, b""
    while n_finished < 2:
        wait_readable(reader.fd)
        for chunk in reader.take():
            n_finished += chunk.finish is not None
            if chunk.index == 0:
                tokens += chunk.tokens
                vector = chunk.vector or vector
    reader.close()
    return TrialAnswer(tokens, array.array("f", vector).tolist())


def main(model: str, load: str, kernels: str, threads: str) -> TrialStatus:
    """Tries one way of loading; where that uses own kernels, compares them with libllama's."""
    try:
        first = draw(model, load == "safe", kernels, int(threads))
        if first is None or not first[1]:
            return TrialStatus.HEALTHY
        reference = draw(model, load == "safe", "ggml", int(threads))
    except CorosrvError as error:
        print(error, file=sys.stderr)
        return TrialStatus.FAULT
    if reference is None or not (words := difference(first[0], reference[0])):
        return TrialStatus.HEALTHY
    print(words)
    return TrialStatus.DIFFERS


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
