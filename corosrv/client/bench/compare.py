"""Runs a plan: every point, round by round, the servers in turn. Blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import msgspec

from corosrv.base.errors import BenchError
from corosrv.client.bench import figures as figures
from corosrv.client.bench.load import processes as spread
from corosrv.client.bench.load.client import Client
from corosrv.client.bench.load.plan import BenchPlan, Mix, Point, in_turn
from corosrv.client.bench.load.processes import Progress
from corosrv.client.bench.load.round import GOODPUT_SHARE, Work
from corosrv.client.bench.load.target import RequestOutcome, Target
from corosrv.client.bench.report.document import PointFigures, Section, ServerFigures, n_cores

TITLES = {
    Mix.SHORT: "Short chats, each with a prompt of its own",
    Mix.LONG: "Prompts of about 1,500 tokens, each of its own",
    Mix.SHARED: "One system prompt of about 400 tokens, shared by all, new in each round",
    Mix.ARRIVALS: "Running streams while prompts of about 1,500 tokens arrive",
    Mix.FILE: "Conversations of a file",
    Mix.TRACE: "Requests of a trace, at their times and in their sizes",
}


_MOST_RATES = 14  # that are tried of a server
_CLOSE_RATES = 1.1  # ratio of the rate that was too high to the one that was not, at which the search ends


class _Models(msgspec.Struct):
    class Model(msgspec.Struct):
        id: str

    data: list[Model]


def find_model(target: Target) -> Target:
    """Returns the target with the first model that it lists, unless one was named. Raises BenchError."""
    status, body = Client(target, timeout=30).get("/models")
    if target.model:
        return target
    if status != 200:
        raise BenchError(f"{target.url}/models answers {status}: {body.decode('utf-8', 'replace')[:200]}; set --model")
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError as error:
        raise BenchError(f"{target.url}/models is not a list of models: {error}") from None
    if not models:
        raise BenchError(f"{target.url} lists no model: set --model")
    return replace(target, model=models[0].id)


class Comparison:
    """Runs one plan on one server or two. `section` has the figures so far."""

    def __init__(self, plan: BenchPlan, targets: list[Target], command: str, progress: Progress) -> None:
        self._plan = plan
        self._targets = targets
        self._progress = progress
        self.section = Section(
            title=TITLES[plan.mix],
            mix=plan.mix.value,
            tokens=plan.tokens,
            rounds=plan.rounds,
            command=command,
            is_forced=plan.is_forced,
            turns=plan.turns,
            limits=plan.limits.words,
        )

    def run(self) -> Section:
        """Runs all points; after an interrupt the section says so. Raises BenchError."""
        try:
            if self._plan.finds_goodput:
                for target in self._targets:
                    self._find_goodput(target)
            else:
                for point in self._plan.points:
                    self._run_point(point, self._targets)
        except KeyboardInterrupt:
            self.section.is_interrupted = True
        finally:
            self._progress.close()
        return self.section

    def _find_goodput(self, target: Target) -> None:
        """Looks for the highest rate at which nearly all requests keep the limits: doubles it, then halves the rest."""
        kept, missed, rate = 0.0, 0.0, self._plan.points[0].rate
        for _ in range(_MOST_RATES):
            (server,) = self._run_point(Point(rate=rate), [target])
            n_kept = sum(each.in_limits or 0 for each in server.rounds)
            if n_kept >= GOODPUT_SHARE * sum(each.requests for each in server.rounds):
                kept = rate
            else:
                missed = rate
            self.section.goodput[target.name] = kept
            if kept and missed and missed <= _CLOSE_RATES * kept:
                break
            rate = math.sqrt(kept * missed) if kept and missed else 2 * kept or missed / 2

    def _run_point(self, point: Point, targets: list[Target]) -> list[ServerFigures]:
        servers = {target: ServerFigures(target.name, target.url, _model_name(target.model)) for target in targets}
        self.section.points.append(
            PointFigures(point.label, point.clients, point.rate, self._plan.n_requests(point), list(servers.values()))
        )
        outcomes: dict[Target, list[list[RequestOutcome]]] = {target: [] for target in servers}
        for number in range(self._plan.warmup + self._plan.rounds):
            for target in in_turn(targets, number):
                load_round = self._run_round(target, point, number)
                if self._is_kept(number, load_round, servers[target]):
                    self._keep(load_round, servers[target], outcomes[target])
                if load_round.is_interrupted:
                    raise KeyboardInterrupt
        return list(servers.values())

    def _is_kept(self, number: int, load_round: spread.Round, server: ServerFigures) -> bool:
        """Tells whether a round counts: no warm-up does, and an interrupted round only if there is no other."""
        if load_round.is_interrupted:
            return bool(load_round.outcomes) and not server.rounds
        return number >= self._plan.warmup

    def _keep(self, load_round: spread.Round, server: ServerFigures, outcomes: list[list[RequestOutcome]]) -> None:
        outcomes.append(load_round.outcomes)
        server.rounds.append(
            figures.figures(load_round.outcomes, load_round.cpu, n_cores(), self._most_tokens(), self._plan.limits)
        )
        server.ttft_curve = figures.curve(_ttfts(outcomes))
        server.itl_curve = figures.curve(chain.from_iterable(map(figures.gaps, outcomes)))

    def _most_tokens(self) -> int:
        """Returns the tokens that each request asks for; 0 where each asks for its own number."""
        return 0 if self._plan.trace else self._plan.tokens

    def _run_round(self, target: Target, point: Point, number: int) -> spread.Round:
        is_warmup = number < self._plan.warmup
        title = "warm-up" if is_warmup else f"round {number - self._plan.warmup + 1}/{self._plan.rounds}"
        on_progress = self._progress.begin(f"{point.label}, {title}, {target.name}", self._plan.n_requests(point))
        return spread.run(Work(target, self._plan, point, number), on_progress)


def _ttfts(rounds: list[list[RequestOutcome]]) -> Iterable[float]:
    streams = (outcome for outcomes in rounds for outcome in outcomes if outcome.failure is None)
    return figures.ttfts(outcome for outcome in streams if not outcome.is_arriving)


def _model_name(model: str) -> str:
    """Drops the folders: llama-server names a model by its path, which reports should not show."""
    return model.rpartition("/")[2] if model.endswith(".gguf") else model
