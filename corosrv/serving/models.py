"""The part of a server that serves models: their pool, and every dialect in front of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from flask import Blueprint, g, has_app_context, has_request_context, request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError, Refused, SettingsError
from corosrv.base.outgoing import WebhookSigner
from corosrv.base.waits import call_later
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.contracts.settings import ModelSettings, ServerSettings, Settings
from corosrv.dialects.anthropic import routes as anthropic
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.generation.forks import ForkTable
from corosrv.dialects.kserve.language import LanguageModels
from corosrv.dialects.llamacpp import loading
from corosrv.dialects.llamacpp import routes as llamacpp_routes
from corosrv.dialects.llamacpp.loading import Switches
from corosrv.dialects.llamacpp.metrics import LlamaCollector
from corosrv.dialects.ollama import answers as ollama_errors
from corosrv.dialects.ollama import routes as ollama
from corosrv.dialects.ollama.routes import OllamaRoutes
from corosrv.dialects.openai import embeddings as embedding_routes
from corosrv.dialects.openai import events as openai_errors
from corosrv.dialects.openai import rerank as rerank_routes
from corosrv.dialects.openai import routes
from corosrv.dialects.openai.responses import routes as responses
from corosrv.dialects.openai.responses.mcp_items import McpAccess
from corosrv.dialects.openai.responses.store import ResponseStore
from corosrv.formats import bodies as json_limits
from corosrv.images.reader import ImageReader
from corosrv.models.engine import Engine
from corosrv.models.engine.binding import NativeJsonScanner
from corosrv.models.engine.marks import check_source
from corosrv.models.hub import cache
from corosrv.models.hub.download import HubDownload
from corosrv.models.loadable import Loadable
from corosrv.models.pool import ModelPool
from corosrv.serving.part import Part, ServerContext, why_not_served
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.lean_flask import caller, current
from corosrv.web.http.metrics import EngineCollector, GatewayCollector
from corosrv.web.key_account import ENTERED, KeyAccount
from corosrv.workers.dispatch.answers import CallRecords

if TYPE_CHECKING:
    from corosrv.dialects.predictions.webhooks import Webhooks
    from corosrv.images.vision.encoder import EncoderStats
    from corosrv.images.vision.engine import LanguageEngine
    from corosrv.images.vision.models import VisionModels
    from corosrv.models.engine.process.budget import EngineBudget
    from corosrv.models.engine.process.remote import RemoteEngine

log = logging.getLogger("corosrv")

_LAST_POSTS_S = 2.0  # that webhooks get to be delivered when everything ends


class RestartCollector(Collector):
    """Reads what became of engines that have processes of their own."""

    def __init__(self, engines: Collection[RemoteEngine]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        restarts = sum(engine.n_restarts for engine in self._engines)
        recovering = sum(engine.is_recovering for engine in self._engines)
        yield CounterMetricFamily("corosrv_engine_restarts", "Engines' processes that followed a lost one", restarts)
        yield GaugeMetricFamily("corosrv_engines_recovering", "Engines that another process is started for", recovering)


class ModelPart(Part):
    """Serves models in every dialect; the first model begins to load when the part is started."""

    formats = ("openai", "anthropic", "llamacpp", "ollama")

    def __init__(self, context: ServerContext) -> None:
        """Raises SettingsError for a chat template that is none, and HubMissing."""
        settings = context.settings
        if any(model.is_hub for model in settings.models):
            cache.check_installed()
        for model in settings.models:
            _check_template(model)
        self._context = context
        self._settings = settings.server
        self._hub = settings.hub
        self._run_dir = settings.operator.run_dir
        self._has_process = self._settings.engine == "process"
        if self._has_process and (problem := why_not_served("engines in processes of their own (COROSRV_ENGINE)")):
            raise SettingsError(problem)
        self._remote: WeakSet[RemoteEngine] = WeakSet()
        self._engines = self._engine_budget()
        self._images = ImageReader(settings.images, find_caller=_caller)
        self._vision = _vision(settings)
        self._webhooks = _webhooks(self._settings)
        self.pool = ModelPool(
            settings,
            self._make,
            _watch,
            memory_elsewhere=lambda: sum(part.held_bytes for part in context.other_parts(self)),
            waits_for_first=self._waits_for_first,
            make_download=self._download,
            on_failed_load=self._on_failed_load,
            may_use=_may_use if self._settings.api_keys_file else None,
            engines=self._engines,
        )

    def _engine_budget(self) -> EngineBudget | None:
        if not self._has_process:
            return None
        from corosrv.models.engine.process.budget import EngineBudget

        return EngineBudget(self._run_dir)

    def model_names(self) -> list[str]:
        return sorted(self.pool.names())

    @property
    def held_bytes(self) -> int:
        return self.pool.held_bytes

    def _make(self, model: ModelSettings) -> Loadable:
        if self._engines is None:
            engine: LanguageEngine = Engine(model)
        else:
            from corosrv.models.engine.process.remote import RemoteEngine

            release = partial(self.pool.release, model.names[0])
            engine = RemoteEngine(model, self._run_dir, self._engines.take_reserved, release)
            self._remote.add(engine)
        return self._vision.make(model, engine) if self._vision is not None and model.mmproj else engine

    def _waits_for_first(self) -> bool:
        """Tells whether requests wait while the first model is loaded: where no balancer asks for health before it
        sends some, and where another worker process may have said that all is well."""
        return self._context.is_mounted or any(engine.is_up for engine in self._remote)

    def _download(self, model: ModelSettings) -> HubDownload:
        return HubDownload(model, self._hub)

    @property
    def images_state(self) -> str | None:
        """Returns `up` or `degraded`, as the encoders of images are; None where no model takes images."""
        return None if self._vision is None else self._vision.state

    @property
    def engine_state(self) -> str | None:
        """Returns `up` or `recovering`, as engines in processes of their own are; None where there are none."""
        if not self._has_process:
            return None
        return "recovering" if any(engine.is_recovering for engine in self._remote) else "up"

    def encoder_stats(self) -> Mapping[str, EncoderStats]:
        """Returns the counters of each model whose encoder runs."""
        return {} if self._vision is None else self._vision.stats()

    def json_scanner(self) -> json_limits.Scanner:
        """Returns the native scanner of JSON texts, which runs without the GIL."""
        return NativeJsonScanner(**json_limits.LIMITS._asdict()).fault

    def start(self) -> None:
        self.pool.start()
        if self._vision is not None:
            self._images.start()

    def _on_failed_load(self) -> None:
        seconds = self._settings.unloadable_s
        if self.pool.unloadable and seconds >= 0:
            log.error("no model could be loaded: this server ends in %g s (COROSRV_UNLOADABLE_S)", seconds)
            call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if (reason := self.pool.unloadable) and self.pool.state is not State.DRAINING:
            self._context.on_unstartable(f"no model could be loaded: {reason}")

    def stop(self) -> None:
        """Refuses new jobs; gives running ones `drain_s` to finish, then ends them with an error event.

        Asked a second time, it ends them at once.
        """
        if self.pool.state is State.DRAINING:
            self.pool.drain()
            return
        self.pool.stop_accepting()
        log.info("stopping: running answers get %g s to finish", self._settings.drain_s)
        call_later(self._settings.drain_s, self.pool.drain)

    def close(self) -> None:
        self.pool.close()
        if self._webhooks is not None:
            self._webhooks.hurry()
            self._webhooks.flush(_LAST_POSTS_S)
            self._webhooks.close()
        self._images.close()

    def has_path(self, path: str) -> bool:
        """Returns True: errors have this part's shape wherever no other part answers."""
        return True

    def error_body(self, error: CorosrvError, path: str) -> Any:
        if ollama.has_path(path):
            return ollama_errors.error_body(error)
        return anthropic.error_body(error) if anthropic.has_path(path) else openai_errors.body(error)

    @property
    def state(self) -> State:
        return self.pool.state

    def check(self) -> None:
        self.pool.check()

    def stats(self) -> DecodeStats | None:
        return self.pool.stats()

    def collectors(self) -> tuple[Collector, ...]:
        collectors = (
            EngineCollector(self.pool, None if (tracer := self._context.tracer) is None else tracer.job_exemplars),
            GatewayCollector(self.pool, self.pool.adapters_ready),
            LlamaCollector(self.pool),
            RestartCollector(self._remote),
        )
        return collectors if self._vision is None else (*collectors, self._vision.collector())

    def blueprints(self) -> tuple[Blueprint, ...]:
        settings, flow = self._settings, self._request_flow()
        switches = Switches(
            settings.slots_endpoint,
            settings.props,
            settings.metrics,
            settings.slot_save_path,
            settings.slot_save_bytes,
            page=settings.page,
        )
        return (
            routes.blueprint(flow, self._context.ask_other_workers),
            responses.blueprint(
                flow,
                ResponseStore(settings.response_store_bytes, settings.n_shares),
                McpAccess(settings.allowed_mcp_servers, settings.mcp_timeout_s),
                None if self._webhooks is None else partial(self._webhooks.send, settings.response_webhook_url),
            ),
            anthropic.blueprint(flow),
            embedding_routes.blueprint(flow, settings.embeddings),
            rerank_routes.blueprint(flow),
            llamacpp_routes.blueprint(flow, self.pool, switches),
            loading.blueprint(
                self.pool, self._context.bodies, settings.max_body_bytes, self._context.ask_other_workers
            ),
        )

    def ollama(self) -> Blueprint:
        """Makes the routes of Ollama's API."""
        settings = self._settings
        routes = OllamaRoutes(
            self._request_flow(),
            self.pool,
            embeds=settings.embeddings,
            idle_s=settings.model_idle_s,
            ask_other_workers=self._context.ask_other_workers,
        )
        return routes.blueprint(self._context.is_mounted)

    def _request_flow(self) -> RequestFlow:
        settings, context = self._settings, self._context
        return RequestFlow(
            worker=self.pool,
            bodies=context.bodies,
            max_body_bytes=settings.max_body_bytes,
            streams=context.streams,
            answers=context.answers,
            groups=context.groups,
            images=self._images,
            takes_embeds=settings.prompt_embeds,
            logs_json=settings.log_format == "json",
            forks=ForkTable(settings.n_shares),
        )

    def language_models(self) -> LanguageModels:
        """Makes what answers inference calls for the models that generate text."""
        settings = self._settings
        records = CallRecords(settings.idempotency_bytes, settings.idempotency_s, settings.n_shares)
        return LanguageModels(self.pool, settings.log_format == "json", records, self._images)


def _vision(settings: Settings) -> VisionModels | None:
    """Returns what makes models with a projector; None, with nothing of it imported, where no model has one."""
    if not any(model.mmproj or (model.is_hub and model.mmproj_auto) for model in settings.models):
        return None
    from corosrv.images.vision.models import VisionModels

    return VisionModels(_watch)


def _webhooks(settings: ServerSettings) -> Webhooks | None:
    """Returns what tells of responses that have ended; None, with nothing of it imported, where nobody is told."""
    if not settings.response_webhook_url:
        return None
    from corosrv.dialects.predictions.webhooks import Webhooks

    return Webhooks(0.0, signer=WebhookSigner(settings.webhook_secrets))


def _caller() -> str | None:
    """Names the caller of the request at hand; None for one that came over gRPC, whose caller is not known here."""
    return caller() if has_app_context() else None


def _may_use(names: Sequence[str]) -> bool:
    """Tells whether the key of the request at hand, or of a call over gRPC, may use a model; others may."""
    account: KeyAccount | None = current(g).get("corosrv_account") if has_app_context() else ENTERED.get()
    return account is None or account.may_use(names)


def _watch(on_gone: Callable[[], None]) -> ClientWatch:
    """Watches the client of the current request, if there is one."""
    return ClientWatch(request.environ if has_request_context() else {}, on_gone)


def _check_template(model: ModelSettings) -> None:
    """Raises SettingsError for an operator's chat template that is none, and names no built-in one."""
    try:
        if model.template:
            check_source(model.template)
    except Refused as error:
        name = "CHAT_TEMPLATE_FILE" if model.chat_template_file else "CHAT_TEMPLATE"
        raise SettingsError(f"COROSRV_{name}: {error}") from None
