"""Measures how far kernels are from F32: `python -m tests.load.kernel_accuracy [--formats Q4_K_M Q8_0] [--text FILE]`.

The packaged model is written in F32 and in each format. All of them read the same text, and tell at each token how
likely they think the thousand likeliest next ones. Printed is the Kullback-Leibler divergence of a format from F32, in
thousandths of a nat a token, with libllama's kernels and with each set of ours that this processor has, and the ratio
of both.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from corosrv.contracts.jobs import Job, Sampling, Text
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import Engine
from tests.models.engine.test_kernels import sets
from tests.support.architectures import quantize
from tests.support.engines import packaged_model, read_all

FORMATS = ("Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")
FORMATS += ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS")
TEXT = Path(__file__).parents[2] / "README.md"
N_LIKELIEST = 1000
EXACT = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}  # with it libllama rounds keys to F16
PIECE = 1500  # characters that are read as one prompt
LEAST = 1e-12  # probability of all other tokens together

Distribution = Mapping[int, float]  # logarithms of probabilities by token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=2000, help="of the text, about so many")
    options = parser.parse_args()
    text = options.text.read_text("utf-8")[: 4 * options.tokens]
    with tempfile.TemporaryDirectory() as folder:
        (exact_model,) = quantize(Path(packaged_model()), Path(folder), ["F32"]).values()
        exact = read(exact_model, "ggml", text, **EXACT)
        print(f"{len(exact)} tokens of {options.text.name}", flush=True)
        for name in options.formats:
            (model,) = quantize(Path(packaged_model()), Path(folder), [name]).values()
            theirs = divergence(exact, read(model, "ggml", text))
            line = f"{name:8}libllama {1000 * theirs:.3f}"
            for kernels in sets():
                ours = divergence(exact, read(model, kernels, text))
                line += f"; {kernels} {1000 * ours:.3f}, {ours / theirs:.3f} times"
            print(line, flush=True)
            model.unlink()


def read(model: Path, kernels: str, text: str, **others: str) -> list[Distribution]:
    """Reads the text with these kernels; returns what was expected at each of its tokens but the first of a piece."""
    engine = Engine(ModelSettings(model=str(model), slots=1, ctx=1024, kernels=kernels, **others))
    engine.open()
    try:
        return [expected for piece in _pieces(text) for expected in _expectations(engine, piece)]
    finally:
        engine.close()


def divergence(exact: Sequence[Distribution], other: Sequence[Distribution]) -> float:
    """Returns the mean Kullback-Leibler divergence of the other's distributions from the exact ones, in nats."""
    return math.fsum(map(_divergence, exact, other)) / len(exact)


def _divergence(exact: Distribution, other: Distribution) -> float:
    least = min(other.values())
    pairs = [(p, other.get(token, least)) for token, p in exact.items()]
    # All tokens that the exact one does not list count as one.
    rest, other_rest = (max(1 - math.fsum(map(math.exp, each)), LEAST) for each in zip(*pairs, strict=True))
    return math.fsum(math.exp(p) * (p - q) for p, q in pairs) + rest * math.log(rest / other_rest)


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _expectations(engine: Engine, text: str) -> Iterator[Distribution]:
    scored = Job((Text(text),), max_tokens=0, scores_prompt=True, sampling=Sampling(temperature=0, n_probs=N_LIKELIEST))
    for chunk in read_all(engine.submit(scored)):
        for token in chunk.prompt_info:
            if token.top:
                yield {candidate.id: candidate.logprob for candidate in token.top}


if __name__ == "__main__":
    main()
