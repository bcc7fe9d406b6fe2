"""Decodes a few tokens with libllama, and compares them with those of corosrv's own kernels: the probe's child process.

Whatever dies here dies in a process that nobody waits for but the probe. What differs is printed in a line.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from corosrv.base.errors import CorosrvError, ModelFailed
from corosrv.base.waits import wait_readable
from corosrv.contracts.jobs import Sampling, TokenInfo
from corosrv.models.engine.binding import NativeEngine, Options, Task, TaskKind
from corosrv.models.engine.probe import TrialStatus
from corosrv.models.engine.template_trial import end_with_server

N_TOKENS = 8  # of each text that is drawn
N_LIKELIEST = 20  # tokens that are compared where two texts part
TIE = 1.0  # nats between two tokens that rounding may put in either order
MAX_DISTANCE = 0.1  # of two vectors, as part of their length: rounding moves them by a hundredth
_SMALL_CONTEXT = 128  # tokens, room for the prompt and the answer
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


def draw(options: Options) -> tuple[TrialAnswer, bool]:
    """Opens a model and lets it answer; returns that and whether corosrv's own kernels computed it.

    Raises ModelFailed where the model cannot be loaded.
    """
    engine = NativeEngine(options)
    try:
        wait_readable(engine.fd)
        state, words = engine.state()
        if state != "ready":
            raise ModelFailed(words)
        info = engine.info()
        kind = TaskKind.GENERATE if info.generates else TaskKind.RANK if info.pooling == "rank" else TaskKind.EMBED
        pools = info.pooling != "none"
        return _answer(engine, kind, pools, len(options.adapters)), bool(info.own_kernels)
    finally:
        engine.close()


def _answer(engine: NativeEngine, kind: TaskKind, pools: bool, n_adapters: int) -> TrialAnswer:
    """Runs the prompt twice in one batch, and returns the first answer. Raises ModelFailed for a broken vocabulary."""
    try:
        prompt = engine.tokenize(_PROMPT, True, False)[:64]
    except CorosrvError as error:
        words = f"libllama cannot split a text by the vocabulary of this model file ({error}): the file is damaged"
        raise ModelFailed(words) from error
    n_probs = N_LIKELIEST if kind is TaskKind.GENERATE else -1
    sampling = Sampling(temperature=0, ignore_eos=True, n_probs=n_probs)
    task = Task(prompt, N_TOKENS, sampling, kind=kind, pools=pools, adapter_scales=[1.0] * n_adapters)
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


def main() -> TrialStatus:
    """Tries the options on standard input; where they use own kernels, compares these with libllama's."""
    end_with_server(TrialStatus.FAULT)
    options = msgspec.json.decode(sys.stdin.buffer.read(), type=Options)
    try:
        first, has_own_kernels = draw(options)
    except ModelFailed as error:
        print(" ".join(str(error).split()))
        return TrialStatus.REFUSED
    except CorosrvError as error:
        print(error, file=sys.stderr)
        return TrialStatus.FAULT
    words = ""
    if has_own_kernels:
        small = replace(options, kernels="ggml", context=_SMALL_CONTEXT, slots=2)
        with suppress(ModelFailed):  # as where too little memory is left for a second load
            words = difference(first, draw(small)[0])
    print(words)
    return TrialStatus.DIFFERS if words else TrialStatus.HEALTHY


if __name__ == "__main__":
    sys.exit(main())
