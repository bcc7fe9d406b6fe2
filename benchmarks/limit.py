"""How fast libllama itself is at a batch, without any server: llama-batched-bench."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import msgspec

from benchmarks.servers import Setup, shown

TIMEOUT = 600.0  # seconds


class Limit(msgspec.Struct):
    """One batch of prompts and answers. `tokens_per_s` has every run's speed with the prompts' time, which a server
    spends as well; `decode_tokens_per_s` that of decoding alone."""

    batch: int
    prompt_tokens: int
    tokens: int
    command: str
    tokens_per_s: list[float]
    decode_tokens_per_s: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_s)

    @property
    def decode_median(self) -> float:
        return statistics.median(self.decode_tokens_per_s)


def measure(programs: Path, setup: Setup, batch: int, prompt_tokens: int, tokens: int, runs: int) -> Limit:
    """Runs it so many times, one after the other."""
    sizes = ["-npp", str(prompt_tokens), "-ntg", str(tokens), "-npl", str(batch)]
    context = ["-c", str(setup.slots * setup.context), "-t", str(setup.threads)]
    command = [str(programs / "llama-batched-bench"), "-m", setup.model, *context, *sizes, "--output-format", "jsonl"]
    lines = [_run(command) for _ in range(runs)]
    return Limit(
        batch,
        prompt_tokens,
        tokens,
        shown(command),
        [batch * tokens / line["t"] for line in lines],
        [line["speed_tg"] for line in lines],
    )


def _run(command: list[str]) -> dict[str, float]:
    printed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, float] = json.loads(line)
    return found
