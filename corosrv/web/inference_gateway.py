"""Reads what an inference gateway before the server (Gateway API) says of a request, in headers or gRPC's metadata.

It says whose share the request takes, and how urgent it is. That counts from the gateway's addresses alone. Knows no
web server, so that every front can ask it.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from corosrv.base.errors import Refused
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY, Flow

if TYPE_CHECKING:
    from corosrv.contracts.settings import ServerSettings

FAIRNESS_ID = "X-Gateway-Inference-Fairness-Id"
OBJECTIVE = "X-Gateway-Inference-Objective"
FAIRNESS_FIELD = "HTTP_X_GATEWAY_INFERENCE_FAIRNESS_ID"  # in the WSGI environment
OBJECTIVE_FIELD = "HTTP_X_GATEWAY_INFERENCE_OBJECTIVE"
_MAX_FLOW = 128  # characters of a fairness id


class GatewayRules(msgspec.Struct, frozen=True):
    """The rules by which the headers of a gateway count.

    `networks`: addresses, networks or `*`, from which they do. `objectives`: priorities by name, the highest first;
    other requests have 0. `divides`: callers have no key, or all the same: with keys of their own their shares and
    tiers stay, and an objective orders the requests of each.
    """

    networks: tuple[str, ...] = ()
    objectives: dict[str, int] = {}
    divides: bool = True

    @classmethod
    def of_server(cls, server: ServerSettings) -> GatewayRules:
        return cls(server.gateway_networks, server.objective_priorities, server.n_shares <= 1)


class InferenceGateway:
    """The gateway before a server: finds what its headers say of a request."""

    def __init__(self, rules: GatewayRules) -> None:
        self._is_any = "*" in rules.networks
        self._networks = tuple(ipaddress.ip_network(name) for name in rules.networks if name != "*")
        self._divides = rules.divides
        ranks = sorted({0, *rules.objectives.values()}, reverse=True)
        self._usual = ranks.index(0)
        self._tiers = {name: ranks.index(priority) for name, priority in rules.objectives.items()}
        # Of requests that say nothing; None where they are as without a gateway.
        self.usual_flow = self._flow("", self._usual) if self._usual and rules.divides else None
        self.is_trusted = functools.lru_cache(maxsize=1024)(self._look)

    def flow_of(self, environ: MutableMapping[str, Any]) -> Flow | None:
        """Returns the flow of an HTTP request; see flow.

        Drops the headers of others than the gateway, so that no upstream believes them.
        """
        names = environ.get(FAIRNESS_FIELD, ""), environ.get(OBJECTIVE_FIELD, "")
        if not self.is_trusted(address := environ.get("REMOTE_ADDR", "")):
            environ.pop(FAIRNESS_FIELD, None)
            environ.pop(OBJECTIVE_FIELD, None)
        return self.flow(address, *names)

    def flow(self, address: str, fairness_id: str, objective: str) -> Flow | None:
        """Returns the flow of a request from an IP address, which says this; None where it changes no terms.

        Raises Refused for a fairness id that is too long.
        """
        if not (fairness_id or objective) or not self.is_trusted(address):
            return self.usual_flow
        if len(fairness_id) > _MAX_FLOW:
            raise Refused(f"{FAIRNESS_ID}: must have at most {_MAX_FLOW} characters", FAIRNESS_ID)
        return self._flow(fairness_id, self._tiers.get(objective, self._usual))

    def _flow(self, name: str, tier: int) -> Flow:
        priority = 0 if tier == self._usual else DEFAULT_PRIORITY + tier - self._usual
        if not self._divides:
            return Flow("", None, priority)
        # The tier is one of all that an owner runs.
        return Flow(name if tier == self._usual else f"{name}\0{tier}", tier, priority)

    def _look(self, address: str) -> bool:
        if self._is_any:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False  # a Unix socket
        found = getattr(found, "ipv4_mapped", None) or found  # as a socket that takes both kinds has them
        return any(found in network for network in self._networks)
