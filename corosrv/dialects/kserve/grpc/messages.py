"""Messages between the server and its gRPC process, beside the asks of corosrv.workers.wire.calls."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.web.inference_gateway import GatewayRules
from corosrv.workers.wire.calls import Ask, AskCancel, AskEnd, AskOutputs, AskTaken

MAX_MESSAGE = 64 << 20  # bytes of one message of gRPC
MAX_BYTES = 256 << 20  # bytes of all requests in memory
MAX_CALLS = 10_000  # calls and streams that may be open at once


class _GrpcMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


# Control channel, to the gRPC process.


class InitGrpc(_GrpcMessage, frozen=True, tag="init_grpc"):
    """The first message; its lane comes with it. `key_digests`: see corosrv.web.keys.KeyRing.

    `asks_keys`: the server says of each call whether its key is let in, as it has a file of keys.
    """

    address: str
    port: int  # 0: any
    key_digests: list[bytes] = []
    max_message: int = MAX_MESSAGE
    max_calls: int = MAX_CALLS
    max_bytes: int = MAX_BYTES
    gateway: GatewayRules = GatewayRules()
    asks_keys: bool = False


class StopGrpc(_GrpcMessage, frozen=True, tag="stop_grpc"):
    """Refuses new calls, lets running ones end in this time, and ends the process."""

    grace: float  # seconds


# Control channel, to the server.


class GrpcServing(_GrpcMessage, frozen=True, tag="grpc_serving"):
    """The port is open."""

    port: int


class GrpcStartFailed(_GrpcMessage, frozen=True, tag="grpc_start_failed"):
    """The process cannot serve, and ends."""

    error: str


class GrpcHeartbeat(_GrpcMessage, frozen=True, tag="grpc_heartbeat"):
    """Comes every HEARTBEAT seconds while the process turns."""

    in_flight: int  # asks


HEARTBEAT = 2.0


class GrpcCounts(_GrpcMessage, frozen=True, tag="grpc_counts"):
    """Tells which calls have ended since the last of these messages, and how many streams are open."""

    ended: list[tuple[str, str, int]]  # method, code, and how many
    n_streams: int


# Lane.


class AskInfo(_GrpcMessage, frozen=True, tag="ask_info"):
    """Asks what the server knows without running anything.

    `subject`: live, ready, server, model, model_ready or index; key, whether the caller's API key is let in; or admit,
    which counts a request of that key as well. Answered by InfoAnswer, or by AskEnd with an error.
    """

    number: int
    subject: str
    model: str = ""
    version: str = ""
    caller: str = ""  # made from the key of the call that asks


class InfoAnswer(_GrpcMessage, frozen=True, tag="info_answer"):
    """`body`: as REST's."""

    number: int
    body: dict[str, Any]


ControlToGrpc = InitGrpc | StopGrpc
ControlFromGrpc = GrpcServing | GrpcStartFailed | GrpcHeartbeat | GrpcCounts
LaneToGrpc = AskOutputs | AskEnd | InfoAnswer
LaneFromGrpc = Ask | AskCancel | AskTaken | AskInfo
