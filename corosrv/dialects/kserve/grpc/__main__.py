"""`python -m corosrv.dialects.kserve.grpc --control FD --lifeline FD`: the gRPC process, which only a server starts.

It takes its settings and its lane, serves, and ends with the server.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import socket
from typing import Any, NoReturn

import grpc
import msgspec

from corosrv.base.errors import ChannelClosed
from corosrv.dialects.kserve.grpc import incoming, protocol, standard_services
from corosrv.dialects.kserve.grpc.asking import Asker
from corosrv.dialects.kserve.grpc.budget import MessageBudget, keep_freed_memory
from corosrv.dialects.kserve.grpc.guard import CallCounts, CallGuard
from corosrv.dialects.kserve.grpc.messages import (
    HEARTBEAT,
    ControlFromGrpc,
    ControlToGrpc,
    GrpcHeartbeat,
    GrpcServing,
    GrpcStartFailed,
    InitGrpc,
    StopGrpc,
)
from corosrv.dialects.kserve.grpc.service import InferenceService
from corosrv.dialects.kserve.grpc.standard_services import REFLECTION_VERSIONS, HealthService, ReflectionService
from corosrv.web.inference_gateway import InferenceGateway
from corosrv.web.keys import KeyRing
from corosrv.workers.wire.aio_channel import AioChannel
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.child import lifeline

log = logging.getLogger("corosrv.grpc")

KEEPALIVE = 60_000  # ms between pings to a client that says nothing, so that one whose machine is gone is noticed
LAST_ANSWERS = 1.0  # seconds in which calls that were not done within the grace are told so
CLIENT_PINGS = 10_000  # ms at least between pings of an idle client; common clients' settings are refused by default
WATCHES_SHARE = 10  # one in so many calls may watch the server's health


class GrpcProcess:
    """Everything that the process does, in the order of its life."""

    def __init__(self, control_fd: int) -> None:
        codec: StructCodec[ControlFromGrpc, ControlToGrpc] = StructCodec(ControlToGrpc, msgspec.msgpack)
        self._control: AioChannel[ControlFromGrpc, ControlToGrpc] = AioChannel(
            socket.socket(fileno=control_fd), codec, self._on_control, lambda reason: die()
        )
        self._counts = CallCounts(self._control.send)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asker: Asker | None = None
        self._health: HealthService | None = None
        self._server: Any = None
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Returns when the server has stopped this process."""
        await self._is_over.wait()

    def _on_control(self, message: ControlToGrpc, fds: tuple[int, ...]) -> None:
        if isinstance(message, InitGrpc):
            self._spawn(self._serve(message, socket.socket(fileno=fds[0])))
        else:
            self._spawn(self._stop(message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop keeps a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, settings: InitGrpc, lane: socket.socket) -> None:
        self._asker = asker = Asker(lane, lambda reason: die())
        options = [
            ("grpc.max_receive_message_length", settings.max_message),
            ("grpc.max_send_message_length", settings.max_message),
            incoming.AS_THEY_COME,
            ("grpc.so_reuseport", 1),  # with the other worker processes of the server, and those that replace them
            ("grpc.keepalive_time_ms", KEEPALIVE),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", CLIENT_PINGS),
            # Windows of 64 KiB until a message is asked for; they would grow with what callers without a key send.
            ("grpc.http2.bdp_probe", 0),
        ]
        try:
            server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.max_calls)
            budget = MessageBudget(settings.max_bytes, settings.max_message)
            ask = asker.info if settings.asks_keys else None
            guard = CallGuard(KeyRing(settings.key_digests), self._counts, ask)
            gateway = InferenceGateway(settings.gateway)
            service = InferenceService(asker, guard, self._counts, settings.max_message, budget, gateway)
            self._health = HealthService(asker, guard, max(1, settings.max_calls // WATCHES_SHARE))
            schemas = (protocol.SCHEMA, standard_services.SCHEMA)
            reflections = [ReflectionService(version, guard, budget, schemas) for version in REFLECTION_VERSIONS]
            handlers = [service.handler(), self._health.handler(), *(part.handler() for part in reflections)]
            server.add_generic_rpc_handlers(handlers)
            port = server.add_insecure_port(_target(settings.address, settings.port))
            await server.start()
        except (RuntimeError, OSError) as error:
            problem = f"gRPC cannot listen on {_target(settings.address, settings.port)}: {error}"
            self._control.send(GrpcStartFailed(problem))
            self._is_over.set()
            return
        self._server = server
        gc.collect()
        gc.freeze()  # a full collection would look at all modules again, which takes as long as hundreds of calls
        self._control.send(GrpcServing(port))
        while True:
            self._control.send(GrpcHeartbeat(asker.n_running))
            await asyncio.sleep(HEARTBEAT)

    async def _stop(self, message: StopGrpc) -> None:
        if self._server is not None and self._asker is not None:
            if self._health is not None:
                self._health.stop()
            stopping = asyncio.ensure_future(self._server.stop(message.grace + LAST_ANSWERS))
            await asyncio.wait((stopping,), timeout=message.grace)
            # grpcio would end them with UNAVAILABLE, on which clients repeat a call: nothing of it has run, that says.
            self._asker.abandon("the server was stopped while the call ran")
            await stopping
        self._counts.flush()
        self._is_over.set()


def _target(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def die() -> NoReturn:
    """Ends the process at once: without the server it can do nothing for anybody."""
    os._exit(1)


def run(control_fd: int) -> None:
    """Runs the process to its end."""
    keep_freed_memory()

    async def live() -> None:
        with contextlib.suppress(ChannelClosed):
            await GrpcProcess(control_fd).run()

    asyncio.run(live())
    os._exit(0)  # what still runs in threads is nobody's any more


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    ends = parser.parse_args(arguments)
    lifeline.hang_on(ends.lifeline)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # grpcio reads metadata that is not UTF-8 as Latin-1, and writes a traceback for it, whoever has sent it.
    logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "Invalid encoding" not in str(record.msg))
    run(ends.control)


if __name__ == "__main__":
    main(sys.argv[1:])
