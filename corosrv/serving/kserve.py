"""The part of a server that speaks KServe's v2 protocol, over REST and gRPC, for whatever runs inference calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
from flask import Blueprint
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError, ModelFailed, ShuttingDown, Starting
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.infer import InferJob, InferWorker
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.dialects.kserve import api_docs, routes, schema
from corosrv.dialects.kserve.grpc.front import GrpcCollector, GrpcConfig, GrpcFront
from corosrv.serving.part import Part, ServerContext
from corosrv.web.accounts import Accounts
from corosrv.web.inference_gateway import GatewayRules
from corosrv.web.key_account import KeyAccount
from corosrv.workers.objects import ObjectStore
from corosrv.workers.worker.parent.call_services import CallAnswers, CallServices, submit_to

_STATES = {
    WorkerState.STARTING: State.STARTING,
    WorkerState.READY: State.READY,
    WorkerState.DRAINING: State.DRAINING,
    WorkerState.SETUP_FAILED: State.FAILED,
    WorkerState.DEFUNCT: State.STARTING,  # another one follows
    WorkerState.STOPPED: State.DRAINING,
}


@dataclass(frozen=True)
class GrpcAccounts:
    """The accounts of API keys with which calls are made over gRPC. `counts_elsewhere`: tells of a caller whether
    another worker process counts its requests, once it gets them."""

    accounts: Accounts
    counts_elsewhere: Callable[[str], bool]

    def enter(self, caller: str) -> KeyAccount | None:
        return self.accounts.enter(caller)

    def admit(self, caller: str) -> None:
        """Counts a request of a caller, if that is for this process to do. May wait. Raises LimitReached."""
        account = self.accounts.account_of(caller)
        if account is not None and not self.counts_elsewhere(caller):
            account.admit("POST")


class KservePart(Part):
    """Serves handlers and language models to clients of the v2 protocol. It starts nothing of its own but gRPC."""

    formats = ("v2",)

    def __init__(self, context: ServerContext, calls: InferWorker, objects: ObjectStore | None) -> None:
        """`calls`: runs them. Raises SettingsError where gRPC is asked for and grpcio is not installed."""
        self._context = context
        self._settings = context.settings.server
        self._takes_keys = self._settings.idempotency_bytes > 0
        self._calls = calls
        self._objects = objects
        self._submit_here = submit_to(calls)
        self.grpc = self._grpc()

    def _grpc(self) -> GrpcFront | None:
        settings, server = self._context.settings.kserve, self._settings
        if settings.grpc_port is None:
            return None
        config = GrpcConfig(
            address=settings.grpc_host or "127.0.0.1",
            port=settings.grpc_port,
            keys=server.keys,
            asks_keys=bool(server.api_keys_file),
            max_message=settings.v2_max_body_bytes,
            max_bytes=server.bodies_bytes,
            gateway=GatewayRules.of_server(server),
        )
        context, tracer = self._context, self._context.tracer
        begin_call = None if tracer is None else tracer.begin_call
        accounts = GrpcAccounts(context.accounts, self._counts_elsewhere) if server.api_keys_file else None
        services = CallServices(self._submit, self._objects, context.ask_peers, begin_call, accounts)
        return GrpcFront(config, self._calls, context.check, services)

    def _counts_elsewhere(self, caller: str) -> bool:
        """Tells whether another worker process counts the requests of a caller, whose key has limits. May wait.

        Where servers share limits through Redis each counts its own.
        """
        context = self._context
        if context.siblings is None or context.settings.cluster is not None:
            return False
        return context.accounts.has_limits(caller) and context.siblings.is_elsewhere(caller)

    def _submit(self, job: InferJob) -> CallAnswers:
        """Runs a call over gRPC: in the worker process that has the answers of its caller, if it has an idempotency
        key, and in the one that counts for its key, if that has limits. See submit_to."""
        siblings, caller = self._context.siblings, job.terms.caller
        counts = self._counts_elsewhere(caller)
        if siblings is None or not (counts or (job.terms.idempotency_key and self._takes_keys)):
            return self._submit_here(job)
        from corosrv.gateway.delegation.delegator import OwnerAnswers

        max_bytes = self._context.settings.kserve.v2_max_body_bytes
        return OwnerAnswers(job, siblings, self._submit_here, max_bytes, is_counted=not counts)

    def start(self) -> None:
        if self.grpc is not None:
            self.grpc.start()

    @property
    def state(self) -> State:
        """The state of the gRPC process until it serves first. While a later one is replaced, HTTP is ready."""
        if self.grpc is None or (self.grpc.has_served and self._ending is None):
            return State.READY
        return _STATES[self.grpc.state]

    def check(self) -> None:
        """Raises the Unavailable of the gRPC process; whether calls are taken is for the parts to say that run them."""
        state, reason = self.state, "" if self.grpc is None else self.grpc.reason
        if state is State.STARTING:
            raise Starting(f"the gRPC process is starting{reason and ': '}{reason}")
        if state is State.FAILED:
            raise ModelFailed(f"the gRPC process could not be started: {reason}")
        if state is State.DRAINING:
            raise ShuttingDown("the server is shutting down")

    def stop(self) -> None:
        """Lets calls over gRPC end in their time, then ends its process; a second call ends it at once."""
        if self.grpc is None:
            return
        if self._ending is None:
            self._ending = gevent.spawn(self.grpc.stop, self._settings.drain_s)
        else:
            self.hurry()

    def hurry(self) -> None:
        self.close()

    def close(self) -> None:
        if self.grpc is not None:
            self.grpc.kill()

    def collectors(self) -> tuple[Collector, ...]:
        return () if self.grpc is None else (GrpcCollector(self.grpc.stats),)

    def document(self) -> dict[str, Any]:
        """Returns a document of the models that declare their inputs; the routes describe themselves."""
        return api_docs.document(self._calls.standings, self._takes_keys)

    def has_path(self, path: str) -> bool:
        return schema.has_path(path)

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return schema.error_body(error)

    def blueprints(self) -> tuple[Blueprint, ...]:
        context = self._context
        blueprints = [
            routes.blueprint(
                self._calls,
                context.bodies,
                context.settings.kserve.v2_max_body_bytes,
                context.streams,
                check_ready=context.check,
                objects=self._objects,
                takes_keys=self._takes_keys,
                answers=context.answers,
            )
        ]
        if self._objects is not None:
            blueprints.append(routes.objects_blueprint(self._objects, context.bodies, context.ask_other_workers))
        return tuple(blueprints)
