"""Makes the parts of a server that its settings ask for, and one worker of all that run inference calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corosrv.base.errors import NotFound, Starting
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferReader, InferWorker, ModelStanding, Target
from corosrv.serving.part import ServerContext
from corosrv.web.docs import Served

if TYPE_CHECKING:  # each is imported where it is made: a server needs few of them
    from corosrv.serving.apps import AppPart
    from corosrv.serving.kserve import KservePart
    from corosrv.serving.models import ModelPart
    from corosrv.serving.peers import PeerPart
    from corosrv.serving.predictor import PredictorPart
    from corosrv.serving.upstreams import UpstreamPart
    from corosrv.workers.dispatch.dispatcher import Dispatcher


@dataclass(eq=False, slots=True)
class Parts:
    """The parts of one server by kind; None for those that its settings do not ask for."""

    models: ModelPart | None = None
    upstreams: UpstreamPart | None = None
    predictor: PredictorPart | None = None
    app: AppPart | None = None
    kserve: KservePart | None = None
    peers: PeerPart | None = None

    def dispatchers(self) -> dict[str, Dispatcher]:
        """Returns the dispatcher of each domain that this server has."""
        dispatchers = {}
        if self.app is not None:
            dispatchers["app"] = self.app.dispatcher
        if self.upstreams is not None:
            dispatchers["upstreams"] = self.upstreams.pool.dispatcher
        return dispatchers

    def served(self) -> list[Served]:
        shown = []
        if self.models is not None:
            shown += [Served(model.id, "model", model.status) for model in self.models.pool.models()]
        if self.upstreams is not None:
            shown += [Served(name, "model", "upstream") for name in self.upstreams.pool.models()]
        if self.app is not None:
            shown += [Served(one.card.name, "handler", one.state.lower()) for one in self.app.dispatcher.standings()]
        if self.predictor is not None:
            shown.append(Served("predictor", "predictor", self.predictor.state.value))
        return shown


def make_parts(context: ServerContext) -> Parts:
    """Makes the parts, and lists them in the context. Raises SettingsError."""
    settings, parts = context.settings, Parts()
    if settings.models:
        from corosrv.serving.models import ModelPart

        parts.models = ModelPart(context)
    if settings.upstream is not None:
        from corosrv.serving.upstreams import UpstreamPart

        local = None if parts.models is None else parts.models.pool
        parts.upstreams = UpstreamPart(context, settings.upstream, local)
    if settings.predictor is not None:
        from corosrv.serving.predictor import PredictorPart

        parts.predictor = PredictorPart(context, settings.predictor)
    if settings.app is not None:
        from corosrv.serving.apps import AppPart

        parts.app = AppPart(context, settings.app)
    has_peers = settings.peer is not None and settings.peer.may_have_peers
    context.calls = _calls(parts, over_grpc=settings.kserve.grpc_port is not None and has_peers)
    if context.calls is not None and settings.kserve.v2:
        from corosrv.serving.kserve import KservePart

        objects = None if parts.app is None else parts.app.objects
        parts.kserve = KservePart(context, context.calls, objects)
    if settings.peer is not None:
        from corosrv.serving.peers import PeerPart

        parts.peers = PeerPart(context, settings.peer)
    in_order = (parts.models, parts.upstreams, parts.predictor, parts.app, parts.kserve, parts.peers)
    context.parts += [part for part in in_order if part is not None]
    return parts


def _calls(parts: Parts, over_grpc: bool) -> InferWorker | None:
    """Returns what runs inference calls; None where nothing does. `over_grpc`: clients may reach those of peers so."""
    workers: list[InferWorker] = []
    if parts.app is not None:
        workers.append(parts.app.dispatcher)
    if parts.models is not None:
        workers.append(parts.models.language_models())  # last: while a model loads it knows no name, and says so
    if not workers and not over_grpc:
        return None
    return workers[0] if len(workers) == 1 else SeveralWorkers(workers)


class SeveralWorkers(InferWorker):
    """Gives each call to the first worker that knows its target: an application's handlers, then language models."""

    def __init__(self, workers: Sequence[InferWorker]) -> None:
        self._workers = tuple(workers)

    def standings(self) -> tuple[ModelStanding, ...]:
        """Returns what all workers know; of two with the same key, that of the worker that calls go to."""
        by_key: dict[str, ModelStanding] = {}
        for worker in self._workers:
            for standing in worker.standings():
                by_key.setdefault(standing.card.key, standing)
        return tuple(by_key.values())

    def find(self, target: Target) -> HandlerCard:
        return self._worker_of(target)[1]

    def submit(self, job: InferJob) -> InferReader:
        return self._worker_of(job.target)[0].submit(job)

    def _worker_of(self, target: Target) -> tuple[InferWorker, HandlerCard]:
        """Returns the worker that knows a target. Raises what the first one raises where none does.

        One that is Starting may know it later, and is the first then.
        """
        failure: NotFound | Starting | None = None
        for worker in self._workers:
            try:
                return worker, worker.find(target)
            except Starting as error:
                failure = failure if isinstance(failure, Starting) else error
            except NotFound as error:
                failure = failure or error
        raise failure or NotFound("nothing that can be called is served here", "model", "model_not_found")
