"""The server of one process: its parts, their blueprints, and the order in which they start and stop."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING

from flask import Blueprint, Flask, Response, g, request
from flask.sansio.scaffold import Scaffold
from gevent import monkey

from corosrv.base.errors import NotOffered, SettingsError
from corosrv.base.processor import Turns
from corosrv.contracts.settings import KeyEntry, Settings
from corosrv.dialects.openai import answer_types
from corosrv.dialects.openai.batches import routes as batch_routes
from corosrv.fleet.cluster.registry import FrontOffer, host_name
from corosrv.formats import bodies
from corosrv.serving import exposition
from corosrv.serving.live import LiveRecorder
from corosrv.serving.part import ServerContext
from corosrv.serving.parts import make_parts
from corosrv.serving.request_hooks import RequestHooks
from corosrv.web import docs, groups, live, page
from corosrv.web.accounts import Accounts, UsageCollector, UsageList, add_usage
from corosrv.web.docs import Home
from corosrv.web.groups import GroupTable
from corosrv.web.http import access, access_log, body_reader, health, metrics, openapi
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.heap import BodyBudget
from corosrv.web.http.lean_flask import LeanFlask, Shortcut, current
from corosrv.web.http.reply import long_json_response, register_errors
from corosrv.web.inference_gateway import GatewayRules, InferenceGateway
from corosrv.web.kept import streams as stream_routes
from corosrv.web.kept.answer_logs import AnswerLogs, LogCollector
from corosrv.web.kept.keyed_answers import KeyCollector, KeyedAnswers
from corosrv.web.kept.streams import ResumableStreams
from corosrv.web.key_account import KeyAccount
from corosrv.web.live import LiveFeed
from corosrv.web.management import routes as management_routes
from corosrv.web.management.listener import ManagementListener, ManagementSettings

if TYPE_CHECKING:  # each is imported where it is made: a server needs few of them
    from corosrv.serving.batches import Batches
    from corosrv.serving.cluster import Cluster
    from corosrv.serving.models import ModelPart
    from corosrv.serving.tracing import SpanMaker

log = logging.getLogger("corosrv")


def _check_keys(settings: Settings, entries: Sequence[KeyEntry]) -> None:
    """Raises SettingsError for keys whose limits could not be kept by everything that is served."""
    others = {
        "upstreams": settings.upstream,
        "an application": settings.app,
        "a predictor": settings.predictor,
    }
    if (other := next((name for name, part in others.items() if part is not None), None)) is None:
        return
    for entry in entries:
        for limit in ("models", "streams", "tokens_per_minute", "tokens_per_day"):
            if getattr(entry, limit):
                raise SettingsError(
                    f"the key '{entry.name}' has {limit}, which is kept for models that run here, and this server has "
                    f"{other} as well: leave it out, or serve the models by a server of their own"
                )


class Server:
    """The server of one process: its parts (models, upstreams, handlers, peers), and the blueprints before them."""

    def __init__(self, settings: Settings, is_mounted: bool = False) -> None:
        """Makes the parts, which start later. `is_mounted`: in somebody's own app. Raises SettingsError."""
        self.settings = server = settings.server
        self._stats = metrics.HttpStats()
        self._tracer = self._make_tracer()
        self._bodies = BodyReader(server.body_timeout_s, BodyBudget(server.bodies_bytes))
        n_keys = server.n_shares
        self._streams = self._make_streams(n_keys)
        answers = KeyedAnswers(self._bodies, server.idempotency_bytes, server.idempotency_s, n_keys, self._streams)
        self._stats.registry.register(KeyCollector(answers))
        self.accounts = Accounts(server.keys, server.api_keys_file, functools.partial(_check_keys, settings))
        self.context = context = ServerContext(
            settings=settings,
            is_mounted=is_mounted,
            http_stats=self._stats,
            bodies=self._bodies,
            answers=answers,
            groups=GroupTable(),
            accounts=self.accounts,
            on_shutdown=self.stop,
            tracer=self._tracer,
        )
        self.on_close_while_loading: Callable[[], None] = lambda: None  # before close() waits for a load
        self._closing = ExitStack()
        self.live = LiveFeed(lambda: LiveRecorder(context, self.parts).frame)
        self.parts = parts = make_parts(context)
        self.cluster = self._cluster()
        self._management = self._make_management()
        scanner = bodies.scan if parts.models is None else parts.models.json_scanner()
        bodies.use_scanner(body_reader.scan_in_thread(scanner))
        for collector in chain.from_iterable(part.collectors() for part in context.parts):
            is_shared = isinstance(collector, metrics.OfEngines) and server.engine == "process"
            (self._stats.engines if is_shared else self._stats.registry).register(collector)
        if self.cluster is not None:
            self._stats.registry.register(self.cluster.collector())
        allowed = access.Access(self.accounts, server.origins, server.hosts, leaves_origins=is_mounted)
        if server.api_keys_file:
            self._stats.registry.register(UsageCollector(self.accounts))
        self._root: Blueprint | None = None  # and whether it has the hooks
        self._root_has_hooks = False
        self._batches = self._make_batches()
        has_log = server.access_log_form != "off" or self._tracer is not None
        self.access_log = access_log.AccessLog(server.access_log_form, self._tracer) if has_log else None
        gateway = InferenceGateway(GatewayRules.of_server(server))
        self._entrance = access.Entrance(
            self._stats, self._bodies, allowed, self.accounts, has_log, self.start, gateway
        )
        self._hooks = RequestHooks(
            self._entrance,
            allowed,
            self._bodies,
            self._stats,
            self.access_log,
            None if parts.peers is None else parts.peers.guard,
            self.start,
            may_have_copies=parts.models is not None and server.engine != "process",
        )
        self._is_started = False
        self._started_at = int(time.time())

    def _make_batches(self) -> Batches | None:
        """Makes what runs batches and keeps files; None, with nothing of it imported, where there is no folder."""
        if not self.settings.files_path:
            return None
        if self.parts.models is None and self.parts.upstreams is None:
            raise SettingsError("COROSRV_FILES_PATH is for batches of models, and this server has none")
        from corosrv.serving.batches import Batches

        find_stats = None if self.parts.models is None else self.context.stats
        batches = Batches(self.settings, find_stats, self.inner_app, lambda: self.context.siblings)
        self._stats.registry.register(batches.runner)
        return batches

    def _batch_routes(self) -> Iterator[Blueprint]:
        from corosrv.dialects.anthropic import routes as message_routes  # which servers without models do not need

        settings, batches = self.settings, self._batches
        folder, wake = (None, lambda: None) if batches is None else (batches.folder, batches.runner.wake)
        yield batch_routes.blueprint(folder, self._bodies, settings.max_body_bytes, settings.file_bytes, wake)
        yield message_routes.batches_blueprint(folder, self._bodies, settings.max_body_bytes, wake)

    @functools.cache  # noqa: B019 - a process has one server, as long as it lives
    def inner_app(self) -> Flask:
        """Makes an app with the routes that make_blueprint() made, for requests that come from worker processes."""
        app = LeanFlask("corosrv.inner")
        app.register_blueprint(self._root or self.make_blueprint(has_hooks=False))
        if not self._root_has_hooks:
            self.add_hooks(app)
        return app

    def _make_tracer(self) -> SpanMaker | None:
        if not self.settings.traces:
            return None
        from corosrv.serving.tracing import SpanCollector, SpanMaker

        tracer = SpanMaker()
        self._stats.registry.register(SpanCollector(tracer))
        return tracer

    def _make_streams(self, n_keys: int) -> ResumableStreams:
        server = self.settings
        logs = AnswerLogs(
            server.resume_bytes,
            server.resume_stream_bytes,
            server.resume_s,
            server.resume_kept_s,
            n_keys,
            has_hub=lambda: bool(monkey.is_module_patched("socket")),
        )
        self._stats.registry.register(LogCollector(logs))
        return ResumableStreams(logs, server.write_timeout_s, self._stats)

    def _cluster(self) -> Cluster | None:
        context, server = self.context, self.settings
        if context.settings.cluster is None:
            return None
        from corosrv.serving.cluster import Cluster

        cluster = Cluster(context.settings.cluster, self._served_here, context.groups.abort)
        if server.idempotency_bytes:
            room = server.idempotency_bytes // max(server.n_shares, 1)
            context.answers.share(cluster.key_records(room, server.idempotency_s))
        if server.api_keys_file:
            self.accounts.share(cluster.key_limits())
        if self.parts.upstreams is not None:
            cluster.share_permits(self.parts.upstreams.pool)
            self.parts.upstreams.forwarder.homes.share(cluster.client, cluster.names)
        if self.parts.peers is not None:
            self.parts.peers.homes.share(cluster.client, cluster.names)
            cluster.registry.on_read = self.parts.peers.see
        return cluster

    def _served_here(self) -> FrontOffer:
        """Says what this server serves, for other fronts."""
        handlers = {domain: dispatcher.cards_here() for domain, dispatcher in self.parts.dispatchers().items()}
        models = [] if self.parts.models is None else sorted(self.parts.models.pool.names())
        if (peers := self.parts.peers) is None or self.cluster is None:
            return FrontOffer(host_name(), models, handlers)
        notice = peers.notice(self.cluster.front)
        return FrontOffer(host_name(), models, handlers, notice.url, notice.proof)

    def _make_management(self) -> ManagementListener | None:
        """Makes the listener for what operators may do; None where there is nothing of it."""
        operator = self.context.settings.operator
        apis = [api for part in self.context.parts for api in part.apis()]
        if self.cluster is not None:
            apis.append(self.cluster.api())
        if not apis:
            return None
        apis.append(management_routes.queue_blueprint(list(self.parts.dispatchers().values())))
        options = ManagementSettings(
            run_dir=operator.run_dir,
            port=operator.mgmt_port,
            host=operator.mgmt_host,
            token_file=operator.mgmt_token_file,
            certfile=operator.mgmt_certfile,
            keyfile=operator.mgmt_keyfile,
        )
        return ManagementListener(options, lambda: self.context.state, apis)

    def start(self) -> None:
        """Begins to load the first model and to set the predictor up, in the process that will serve; returns at once.

        Twice is harmless.
        """
        if self._is_started:
            return
        self._is_started = True
        atexit.register(self.close)
        context, parts = self.context, self.parts
        if self._tracer is not None:
            self._closing.callback(self._tracer.close)
        if parts.models is not None:
            self._closing.callback(self._close_models, parts.models)
        if self.cluster is not None:
            self._closing.callback(self.cluster.close)
            self.cluster.start()
        if self._management is not None and monkey.is_module_patched("socket"):
            self._closing.callback(self._management.close)
            self._management.start()
        for part in context.parts:
            if part is not parts.models:
                self._closing.callback(part.close)
            part.start()
        if self._batches is not None:
            self._closing.callback(self._batches.close)
            self._batches.start()

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
        if self._batches is not None:
            self._batches.stop()
        if self.cluster is not None:
            self.cluster.stop()
        for part in self.context.parts:
            part.stop()

    def add_hooks(self, scaffold: Scaffold) -> None:
        """Adds the checks of requests and the headers of answers to an app or a blueprint."""
        scaffold.before_request(self._hooks.begin)
        if self.parts.upstreams is not None:
            self.parts.upstreams.add_hook(scaffold)
        scaffold.after_request(self._hooks.complete)
        if self.parts.peers is not None:
            self.parts.peers.add_hook(scaffold)
        scaffold.teardown_request(self._hooks.end)
        register_errors(scaffold, lambda error: self.context.error_body(error, request.path))

    def make_blueprint(self, has_hooks: bool = True) -> Blueprint:
        """Makes the blueprint of all routes; without hooks, it is for an app that has them."""
        root = self._root = Blueprint("corosrv", __name__)
        self._root_has_hooks = has_hooks
        for routes in self._routes():
            root.register_blueprint(routes)
        if has_hooks:
            self.add_hooks(root)

        @root.get("/metrics")
        @openapi.operation(
            "Server",
            "Report counters",
            "Prometheus' text form: every part's counters, by model where they are a model's. Where the server has "
            "several worker processes, those of all: the label `front` says whose a series is. OpenMetrics, with the "
            "exemplars of traced requests, for `Accept: application/openmetrics-text`.",
            media_type="text/plain",
            statuses=(501,),
        )
        def report() -> Response:
            if not self.settings.metrics:
                raise NotOffered("metrics are switched off (COROSRV_METRICS=0)")
            exemplars = None if self._tracer is None else self._tracer.job_exemplars
            answer = exposition.answer(request, self._stats, self.context.siblings, exemplars)
            answer.headers["Process-Start-Time-Unix"] = str(self._started_at)
            return answer

        @root.get("/v1/usage")
        @openapi.operation(
            "Server",
            "Show what an API key has used",
            "Requests, tokens and milliseconds of the key that asks, since the start and today (UTC), and its limits; "
            "of all keys for a key with `admin`.",
            answer=UsageList,
            statuses=(501,),
        )
        def usage() -> Response:
            account: KeyAccount | None = current(g).get("corosrv_account")
            if account is None:
                raise NotOffered("usage is counted by API key, and this server needs none (COROSRV_API_KEYS_FILE)")
            accounts = list(self.accounts.all()) if account.entry.admin else [account]
            views = [one.view() for one in Turns().among(accounts)]
            since = int(self.accounts.since)
            for answer in self.context.ask_other_workers(request):
                if answer.status == HTTPStatus.OK:
                    other = json.loads(answer.body)
                    add_usage(views, other["data"])
                    since = min(since, other["since"])
            return long_json_response({"object": "list", "since": since, "data": views})

        return root

    def _routes(self) -> Iterator[Blueprint]:
        context, parts = self.context, self.parts
        states: dict[str, Callable[[], str | None]] = {}
        if self.cluster is not None:
            states["redis"] = self.cluster.redis_state
        if (models := parts.models) is not None:
            states |= {"images": lambda: models.images_state, "engine": lambda: models.engine_state}
        yield health.blueprint(context, states)
        yield docs.page(has_tabs=self.settings.page)
        yield live.blueprint(self.live, self._stats, self.settings.metrics, self.settings.write_timeout_s)
        if parts.models is not None:
            yield parts.models.ollama()
        elif parts.upstreams is not None:
            yield parts.upstreams.ollama()
        if parts.models is not None or parts.upstreams is not None:
            elsewhere = None if self.cluster is None else self.cluster.groups.abort_elsewhere
            yield groups.blueprint(context.groups, elsewhere)
            yield stream_routes.blueprint(self._streams, self._bodies, self.settings.max_body_bytes)
            yield from self._batch_routes()
        for part in context.parts:
            yield from part.blueprints()
        if self.settings.page:
            yield page.blueprint(context.is_mounted)
        # Behind the parts: `/` is a predictor's index, as Cog's server has it.
        has_models = parts.models is not None or parts.upstreams is not None
        home = Home(parts.served, lambda: context.state.value, self.settings.needs_key, has_models)
        yield home.blueprint(context.is_mounted)
        if parts.predictor is None or not parts.predictor.is_alone:  # which has the document as Cog's server does
            documents = [part.document for part in context.parts]
            yield docs.document(answer_types.ErrorAnswer, self.settings.needs_key, documents)

    def shortcut(self) -> Shortcut | None:
        """Returns what answers plain requests without Flask; None where hooks of other parts look at all of them."""
        parts = self.parts
        if parts.upstreams is None or parts.models is not None or parts.peers is not None:
            return None
        return parts.upstreams.direct(self._entrance)
