"""Collects groups of answers step by step, as reinforcement learning wants them: python deploy/rollout/oversample.py

Each step submits more groups than it needs, ends when enough are complete, aborts the others, and keeps what they have
for the next step, which goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from corosrv.client import GroupAnswer, RolloutGroup, rollout

TEXT = "/v1/completions"


@dataclass
class Sample:
    """One answer, perhaps from several steps."""

    text: str = ""
    n_tokens: int = 0
    logprobs: list[float | None] = field(default_factory=list)
    finish: str = ""  # empty until it is complete

    def add(self, answer: GroupAnswer) -> None:
        self.text += answer.text
        self.n_tokens += len(answer.tokens)
        self.logprobs += [token.logprob for token in answer.tokens]
        self.finish = answer.finish if answer.is_complete else ""


@dataclass
class SampleGroup:
    """A prompt and its samples."""

    prompt: str
    samples: list[Sample]

    @property
    def open_samples(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.finish]

    def body(self, max_tokens: int) -> dict[str, Any]:
        """Asks for what is missing: one request, so that the group stays on one worker."""
        fewest = min(sample.n_tokens for sample in self.open_samples)
        prompts = [self.prompt + sample.text for sample in self.open_samples]
        return {"prompt": prompts, "max_tokens": max(max_tokens - fewest, 1)}

    def add(self, group: RolloutGroup) -> None:
        for sample, answer in zip(self.open_samples, group.answers, strict=True):
            sample.add(answer)


class Collector:
    """Collects steps of groups from a stream of prompts. What is unfinished goes first into the next step."""

    def __init__(self, prompts: Iterable[str], n: int, max_tokens: int, **options: Any) -> None:
        """`options`: of corosrv.client.rollout."""
        self._prompts = iter(prompts)
        self._n = n
        self._max_tokens = max_tokens
        self._options = options
        self.complete: deque[SampleGroup] = deque()  # more than the last step needed
        self.waiting: deque[SampleGroup] = deque()  # partial, lost or not submitted

    def collect(self, n_groups: int, over_sampling: float = 1.5) -> list[SampleGroup]:
        """Returns so many complete groups, or fewer if there are no more prompts. Waits."""
        submitted: list[SampleGroup] = []
        bodies = self._submit(math.ceil(n_groups * over_sampling), submitted)
        with rollout(bodies, path=TEXT, max_tokens=self._max_tokens, logprobs=0, **self._options) as run:
            for group in run:
                samples = submitted[group.index]
                samples.add(group)
                (self.waiting if samples.open_samples else self.complete).append(samples)
                if len(self.complete) >= n_groups:
                    run.abort(partial=True)
        self.waiting.extend(submitted[lost.index] for lost in run.report.lost)
        print(f"  {run.report}")
        return [self.complete.popleft() for _ in range(min(n_groups, len(self.complete)))]

    def _submit(self, n_groups: int, submitted: list[SampleGroup]) -> Iterator[dict[str, Any]]:
        """Yields the bodies of groups, and notes each as it is submitted: those that wait first, then new ones."""
        n_waiting = len(self.waiting)  # those of this step come behind them
        for _ in range(n_groups - len(self.complete)):
            if n_waiting:
                n_waiting -= 1
                group = self.waiting.popleft()
            elif (prompt := next(self._prompts, None)) is not None:
                group = SampleGroup(prompt, [Sample() for _ in range(self._n)])
            else:
                return
            submitted.append(group)
            yield group.body(self._max_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model")
    parser.add_argument("--api-key")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--groups", type=int, default=16, help="complete groups that a step needs")
    parser.add_argument("--n", type=int, default=4, help="answers to a prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--over-sampling", type=float, default=1.5, help="groups submitted for each that is needed")
    parser.add_argument("--concurrency", type=int, default=64, help="groups at once")
    options = parser.parse_args()
    collector = Collector(
        (f"Question {number}: how many are {number} and {number + 1}? Answer:" for number in itertools.count(1)),
        options.n,
        options.max_tokens,
        url=options.url,
        model=options.model,
        api_key=options.api_key,
        concurrency=options.concurrency,
        temperature=1.0,
    )
    for step in range(1, options.steps + 1):
        groups = collector.collect(options.groups, options.over_sampling)
        n_tokens = sum(sample.n_tokens for group in groups for sample in group.samples)
        kept = sum(sample.n_tokens for group in collector.waiting for sample in group.samples)
        print(
            f"step {step}: {len(groups)} groups, {n_tokens} tokens; kept for the next: {len(collector.waiting)} groups "
            f"with {kept} tokens, {len(collector.complete)} complete",
            flush=True,
        )
        # Here the model would be trained.


if __name__ == "__main__":
    main()
