"""The server of one process: its parts, the checks of every request, and the headers of every answer."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, current_app, g, request
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError, NotOffered
from corosrv.contracts.jobs.infer import InferWorker
from corosrv.contracts.settings import Settings
from corosrv.dialects.kserve.several import SeveralWorkers
from corosrv.dialects.llamacpp.metrics import with_token_counter
from corosrv.dialects.openai import answer_types
from corosrv.fleet.cluster.registry import FrontOffer, host_name
from corosrv.formats import bodies
from corosrv.serving.live import LiveRecorder, LiveSources
from corosrv.serving.part import Part, Readiness
from corosrv.web import live
from corosrv.web.docs import home as docs
from corosrv.web.docs.home import Home, Served, ollama_refusals
from corosrv.web.groups import routes as group_routes
from corosrv.web.groups.table import GroupTable
from corosrv.web.http import access, body_reader, health, metrics, openapi, terms
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.heap import BodyBudget
from corosrv.web.http.keyed_answers import KeyCollector, KeyedAnswers
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import PARKS, LateResponse, RequestAccount, register_errors
from corosrv.web.live import LiveFeed, MakeFrame
from corosrv.web.management.listener import TokenGuard, read_token
from corosrv.web.page import routes as page_routes

if TYPE_CHECKING:  # each is imported where it is made: a server needs few of them
    from corosrv.serving.apps import AppPart
    from corosrv.serving.cluster import Cluster, Sharing
    from corosrv.serving.kserve import KservePart
    from corosrv.serving.management import ServerManagement
    from corosrv.serving.models import ModelPart
    from corosrv.serving.peers import PeerPart
    from corosrv.serving.predictor import PredictorPart
    from corosrv.serving.upstreams import UpstreamPart

log = logging.getLogger("corosrv")

_NO_WORKER = "no worker of the application could be started"


class Server:
    """The server of one process: its parts (models, upstreams, handlers, peers), and the blueprints before them."""

    def __init__(self, settings: Settings, is_mounted: bool = False) -> None:
        """Makes the parts, which start later. `is_mounted`: in somebody's own app, where no balancer asks for health
        before it sends requests, so that these wait while the first model is loaded."""
        self._is_mounted = is_mounted
        self.settings = server = settings.server
        self._stats = metrics.HttpStats()
        self.on_shutdown: Callable[[], None] = self.stop  # what POST /shutdown does
        self._bodies = BodyReader(server.body_timeout_s, BodyBudget(server.bodies_bytes))
        self._answers = KeyedAnswers(self._bodies, server.idempotency_bytes, server.idempotency_s, len(server.keys))
        self._stats.registry.register(KeyCollector(self._answers))
        self._groups = GroupTable()
        self.on_unstartable: Callable[[str], None] = lambda reason: None  # if nothing of it can be started
        self.on_close_while_loading: Callable[[], None] = lambda: None  # before close() waits for a load
        self._closing = ExitStack()
        # Connections and the greenlets that serve them; None where the web server does not tell.
        self.count_clients: Callable[[], tuple[int | None, int | None]] = lambda: (None, None)
        self.live = LiveFeed(self._begin_live)
        self.models = self._models(settings)
        self.predictor = self._predictor(settings)
        self.app = self._app(settings)
        self.upstreams = self._upstreams(settings)
        self.cluster = self._cluster(settings)
        if self.cluster is not None and server.idempotency_bytes:
            room = server.idempotency_bytes // max(len(server.keys), 1)
            self._answers.share(self.cluster.key_records(room, server.idempotency_s))
        self.sharing = self._sharing(settings)
        self.kserve = self._kserve(settings)
        self.peers = self._peers(settings)
        parts = (self.models, self.upstreams, self.predictor, self.app, self.kserve, self.peers)
        self.parts: list[Part] = [part for part in parts if part is not None]
        self.management = self._management(settings)
        scanner = bodies.scan if self.models is None else self.models.json_scanner()
        bodies.use_scanner(body_reader.scan_in_thread(scanner))
        for collector in chain.from_iterable(part.collectors() for part in self.parts):
            self._stats.registry.register(collector)
        if self.cluster is not None:
            self._stats.registry.register(self.cluster.collector())
        self._access = access.Access(server.keys, server.origins, server.hosts, leaves_origins=is_mounted)
        self._is_started = False
        self._has_warned = False
        self._started_at = int(time.time())

    def _begin_live(self) -> MakeFrame:
        sources = LiveSources(
            stats=self._stats,
            find_state=self._state_word,
            count_clients=self.count_clients,
            shows_slots=self.settings.slots_endpoint,
            models=self.models,
            app=self.app,
            upstreams=self.upstreams,
            kserve=self.kserve,
            predictor=self.predictor,
        )
        return LiveRecorder(sources).frame

    def _models(self, settings: Settings) -> ModelPart | None:
        if not settings.models:
            return None
        from corosrv.serving.models import ModelPart

        part = ModelPart(
            settings,
            self._stats,
            self._bodies,
            lambda: self.app.manager.held_memory if self.app else 0,
            self._answers,
            self._groups,
            waits_for_first=self._is_mounted,
        )
        part.on_unloadable = lambda reason: self.on_unstartable(f"no model could be loaded: {reason}")
        return part

    def _predictor(self, settings: Settings) -> PredictorPart | None:
        if settings.predictor is None:
            return None
        from corosrv.serving.predictor import PredictorPart

        return PredictorPart(
            settings.predictor,
            settings.server,
            self._stats,
            self._bodies,
            self._answers,
            stop_server=lambda: self.on_shutdown(),
            is_alone=not settings.models
            and all(part is None for part in (settings.app, settings.upstream, settings.peer)),
        )

    def _app(self, settings: Settings) -> AppPart | None:
        if settings.app is None:
            return None
        from corosrv.serving.apps import AppPart
        from corosrv.workers.worker.parent.asks import submit_to

        return AppPart(
            settings.app,
            settings.server,
            submit=lambda job: submit_to(self.calls)(job),
            memory_elsewhere=lambda: self.models.pool.held_bytes if self.models else 0,
            on_unstartable=lambda reason: self.on_unstartable(f"{_NO_WORKER}: {reason}"),
            queue_per_key=settings.queue_per_key,
        )

    def _upstreams(self, settings: Settings) -> UpstreamPart | None:
        if settings.upstream is None:
            return None
        from corosrv.serving.upstreams import UpstreamPart

        local = None if self.models is None else self.models.pool
        has_router = settings.upstream.router_paths
        return UpstreamPart(
            settings.upstream,
            settings.server,
            self._stats,
            self._bodies,
            self._answers,
            local,
            self._groups,
            settings.queue_per_key,
            TokenGuard(read_token(settings.operator.mgmt_token_file)) if has_router else None,
        )

    def _cluster(self, settings: Settings) -> Cluster | None:
        if settings.cluster is None:
            return None
        from corosrv.serving.cluster import Cluster

        return Cluster(settings.cluster, self._served_here, self._groups.abort)

    def _sharing(self, settings: Settings) -> Sharing | None:
        if settings.cluster is None or self.cluster is None or (self.app is None and self.upstreams is None):
            return None
        from corosrv.serving.cluster import Sharing

        sharing = Sharing(settings.cluster, self.cluster)
        if self.app is not None and settings.app is not None:
            limits = settings.app
            sharing.add("app", self.app.dispatcher, max_calls=limits.max_queue, max_bytes=limits.queue_bytes)
        if self.upstreams is not None and settings.upstream is not None:
            sharing.add(
                "upstreams",
                self.upstreams.pool.dispatcher,
                max_calls=settings.upstream.upstream_queue,
                max_bytes=settings.upstream.upstream_queue_bytes,
            )
        return sharing

    def _management(self, settings: Settings) -> ServerManagement:
        from corosrv.serving.management import ServerManagement

        managed = [part for part in (self.app, self.upstreams, self.peers) if part is not None]
        dispatchers = [] if self.app is None else [self.app.dispatcher]
        if self.upstreams is not None:
            dispatchers.append(self.upstreams.pool.dispatcher)
        apis = [api for part in managed for api in part.apis()]
        if self.cluster is not None:
            apis.append(self.cluster.api())
        return ServerManagement(settings.operator, lambda: Readiness(self.parts).state, apis, dispatchers)

    def _served_here(self) -> FrontOffer:
        """Says what this server serves, for other fronts."""
        handlers = {} if self.app is None else {"app": self.app.dispatcher.cards_here()}
        if self.upstreams is not None:
            handlers["upstreams"] = self.upstreams.pool.dispatcher.cards_here()
        models = [] if self.models is None else sorted(self.models.pool.names())
        return FrontOffer(host_name(), models, handlers)

    def _kserve(self, settings: Settings) -> KservePart | None:
        workers: list[InferWorker] = []
        if self.app is not None:
            workers.append(self.app.dispatcher)
        if self.models is not None:
            workers.append(self.models.language_models())  # last: while a model loads it knows no name, and says so
        self.calls = workers[0] if len(workers) == 1 else SeveralWorkers(workers)
        if not workers or not settings.kserve.v2:
            return None
        from corosrv.serving.kserve import KservePart

        objects = self.app.objects if self.app is not None else None
        return KservePart(settings.kserve, settings.server, self.calls, objects, self._stats, self._bodies, self._check)

    def _peers(self, settings: Settings) -> PeerPart | None:
        if settings.peer is None:
            return None
        from corosrv.serving.offers import ServerOffers
        from corosrv.serving.peers import PeerPart

        offers = ServerOffers(
            None if self.models is None else self.models.pool,
            None if self.upstreams is None else self.upstreams.pool,
            None if self.kserve is None else self.calls,
            has_predictor=self.predictor is not None,
        )
        return PeerPart(
            settings.peer,
            settings.server,
            max(settings.server.max_body_bytes, settings.kserve.v2_max_body_bytes),
            self._stats,
            self._bodies,
            offers,
            lambda error, path: self.part_of(path).error_body(error, path),
        )

    def _check(self) -> None:
        """Raises the Unavailable that calls would meet now."""
        Readiness(self.parts).check()

    def part_of(self, path: str) -> Part:
        """Returns the part whose form of errors a client expects at this path."""
        # The first part takes what no other has.
        return next((part for part in reversed(self.parts) if part.has_path(path)), self.parts[0])

    def start(self) -> None:
        """Begins to load the first model and to set the predictor up, in the process that will serve; returns at once.

        Twice is harmless.
        """
        if self._is_started:
            return
        self._is_started = True
        atexit.register(self.close)
        if self.models is not None:
            self._closing.callback(self._close_models, self.models)
        if self.cluster is not None:
            self._closing.callback(self.cluster.close)
            self.cluster.start()
        self._closing.callback(self.management.close)
        self.management.start()
        if self.sharing is not None:
            self._closing.callback(self.sharing.close)
            self.sharing.start()
        for part in self.parts:
            if part is not self.models:
                self._closing.callback(part.close)
            part.start()

    def close(self) -> None:
        """Ends everything that start() began, models last; waits for steps and loads in progress. Twice is harmless."""
        self._closing.close()

    def _close_models(self, models: ModelPart) -> None:
        if models.pool.is_loading:
            self.on_close_while_loading()
        models.close()

    def stop(self) -> None:
        """Refuses new work and lets running work end in its time; a second call ends it at once."""
        self.live.close()
        if self.sharing is not None:
            self.sharing.stop()
        if self.cluster is not None:
            self.cluster.stop()
        for part in self.parts:
            part.stop()

    def add_hooks(self, scaffold: Scaffold) -> None:
        """Adds the checks of requests and the headers of answers to an app or a blueprint."""
        scaffold.before_request(self._begin)
        if self.upstreams is not None:
            self.upstreams.add_hook(scaffold)
        scaffold.after_request(self._complete)
        if self.peers is not None:
            self.peers.add_hook(scaffold)
        scaffold.teardown_request(self._end)
        register_errors(scaffold, self.error_body)

    def make_blueprint(self, has_hooks: bool = True) -> Blueprint:
        """Makes the blueprint of all routes; without hooks, it is for an app that has them."""
        root = Blueprint("corosrv", __name__)
        for routes in self._routes():
            root.register_blueprint(routes)
        if has_hooks:
            self.add_hooks(root)

        @root.get("/metrics")
        @openapi.operation(
            "Server",
            "Report counters",
            "Prometheus' text form: every part's counters, by model where they are a model's.",
            media_type="text/plain",
            statuses=(501,),
        )
        def exposition() -> Response:
            if not self.settings.metrics:
                raise NotOffered("metrics are switched off (COROSRV_METRICS=0)")
            answer = Response(with_token_counter(metrics.exposition(self._stats)), content_type=metrics.CONTENT_TYPE)
            answer.headers["Process-Start-Time-Unix"] = str(self._started_at)
            return answer

        return root

    def _routes(self) -> Iterator[Blueprint]:
        yield health.blueprint(Readiness(self.parts), {"redis": self._redis_state, "images": self._images_state})
        yield docs.page()
        yield live.blueprint(self.live, self._stats, self.settings.metrics, self.settings.write_timeout_s)
        if self.models is not None:
            yield self.models.ollama(self._is_mounted, self._names_of_upstreams)
        elif self.upstreams is not None:
            yield ollama_refusals(self._is_mounted)
        if self.models is not None or self.upstreams is not None:
            elsewhere = None if self.cluster is None else self.cluster.groups.abort_elsewhere
            yield group_routes.blueprint(self._groups, elsewhere)
        for part in self.parts:
            yield from part.blueprints()
        if self.settings.page:
            yield page_routes.blueprint(self._is_mounted)
        # Behind the parts: `/` is a predictor's index, as Cog's server has it.
        home = Home(self._list_served, self._state_word, bool(self.settings.keys), self.models is not None)
        yield home.blueprint(self._is_mounted)
        if self.predictor is None or len(self.parts) > 1:  # a predictor alone has the document as Cog's server does
            documents = [part.document for part in self.parts]
            yield docs.document(answer_types.ErrorAnswer, bool(self.settings.keys), documents)

    def _names_of_upstreams(self) -> Sequence[str]:
        return () if self.upstreams is None else self.upstreams.pool.models()

    def _list_served(self) -> list[Served]:
        """Lists what is served, for people."""
        shown = [] if self.models is None else [Served(m.id, "model", m.status) for m in self.models.pool.models()]
        if self.upstreams is not None:
            shown += [Served(name, "model", "upstream") for name in self.upstreams.pool.models()]
        if self.app is not None:
            shown += [Served(one.card.name, "handler", one.state.lower()) for one in self.app.dispatcher.standings()]
        if self.predictor is not None:
            shown.append(Served("predictor", "predictor", self.predictor.state.value))
        return shown

    def _state_word(self) -> str:
        return Readiness(self.parts).state.value

    def _redis_state(self) -> str | None:
        return None if self.cluster is None else self.cluster.redis_state()

    def _images_state(self) -> str | None:
        return None if self.models is None else self.models.images_state

    def error_body(self, error: CorosrvError) -> Any:
        """Makes the body of an error that ends the current request, in the shape that its path asks for."""
        return self.part_of(request.path).error_body(error, request.path)

    def _begin(self) -> None:
        """Lets a request in, or raises why it may not pass."""
        self.start()
        http_request, notes = current(request), current(g)
        if self.models and not self._has_warned and http_request.environ.get("wsgi.multiprocess"):
            self._has_warned = True
            log.warning("several worker processes: process %d loads its own copy of the model", os.getpid())
        if self.peers is not None:  # may have to answer what nobody here could after all: they need the request
            http_request.environ.pop(PARKS, None)
        notes.corosrv_is_busy = True
        notes.corosrv_began = time.monotonic()
        self._stats.begin_work()
        notes.corosrv_request_id = access.request_id(http_request)
        view = current_app.view_functions.get(http_request.endpoint or "")
        is_open = http_request.method == "OPTIONS" or openapi.needs_no_key(view)
        caller = None if self.peers is None else self.peers.guard.admit(http_request.environ)
        if caller is None:
            caller = "" if is_open else self._access.check(http_request)
        notes.corosrv_caller = caller

    def _end(self, error: BaseException | None) -> None:
        """Counts the request as ended; its stream may have begun."""
        if current(g).pop("corosrv_is_busy", False):
            self._stats.end_work()
        self._bodies.release(current(request))

    def _complete(self, response: Response) -> Response:
        """Adds what every answer has."""
        http_request = current(request)
        response.headers["X-Request-Id"] = current(g).get("corosrv_request_id") or access.request_id(http_request)
        terms.add_header(response)
        self._access.allow(http_request, response)
        route = http_request.url_rule.rule if http_request.url_rule else "none"
        if isinstance(response, LateResponse):
            current(g).pop("corosrv_is_busy", False)
            response.account = RequestAccount(self._stats, route, self._bodies.hand_over(http_request))
        else:
            self._stats.count_answer(route, response.status_code)
        return response
