"""Requests that go on to another server as they were sent, and the answers that come back as they were given."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.jobs.infer import InferOutputs, InferRequest
from corosrv.formats.tensors import Tensor

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ForwardRequest(InferRequest):
    """Holds a request that goes on to an upstream as it was sent; it has no tensors.

    `path` has the query in it. `headers` are those that may go on: no hop-by-hop fields, no keys of this server.
    `prompt`: the beginning of what the model will read, by which upstreams that know it already are found.
    """

    method: str = "POST"
    path: str = "/"
    headers: Headers = ()
    body: bytes = b""
    prompt: bytes = b""

    @property
    def n_bytes(self) -> int:
        return len(self.body)


@dataclass(frozen=True, slots=True)
class AnswerHead(InferOutputs):
    """Holds the status and headers of an upstream's answer: the first item of a forwarded call that reaches one."""

    outputs: tuple[Tensor, ...] = ()
    status: int = 200
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class AnswerBody(InferOutputs):
    """Holds bytes of the body of an upstream's answer, as they came."""

    outputs: tuple[Tensor, ...] = ()
    data: bytes = b""
