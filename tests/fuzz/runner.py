"""Runs targets: what is in their corpus, then what hypothesis makes up."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz import targets

CORPUS = Path(__file__).parent / "corpus"
_BATCH = 200  # examples between two looks at the clock


@dataclass(frozen=True)
class Target:
    """What is fuzzed. Its corpus is a folder of examples that once failed, or that are hard to come by."""

    name: str
    examples: SearchStrategy[Any]
    check: Callable[[Any], None]

    @property
    def folder(self) -> Path:
        return CORPUS / self.name

    def corpus(self) -> Iterator[tuple[str, Any]]:
        for path in sorted(self.folder.glob("*.json")):
            yield path.stem, json.loads(path.read_text())

    def run(self, n_examples: int, seed_number: int) -> None:
        """Checks so many; raises what the smallest failing one raises, after adding it to the corpus."""
        last: list[Any] = [None]

        @seed(seed_number)
        @settings(
            max_examples=n_examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(self.examples)
        def check(example: Any) -> None:
            last[0] = example
            self.check(example)

        try:
            check()
        except Exception:
            self._keep(last[0])
            raise

    def run_for(self, seconds: float) -> int:
        """Checks until the time is over; returns how many."""
        n_checked, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.run(_BATCH, random.getrandbits(64))
            n_checked += _BATCH
        return n_checked

    def _keep(self, example: Any) -> None:
        text = json.dumps(example, indent=1) + "\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json").write_text(text)


def all_targets() -> list[Target]:
    """Of every module in `targets`."""
    modules = [
        importlib.import_module(f"{targets.__name__}.{found.name}") for found in pkgutil.iter_modules(targets.__path__)
    ]
    return [Target(module.__name__.rpartition(".")[2], module.EXAMPLES, module.check) for module in modules]
