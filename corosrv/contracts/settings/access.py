"""Settings of who may call a server, and of the inference gateway before it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from corosrv.contracts.settings.sources import Check, setting, split_words


def _are_networks(text: str) -> bool:
    try:
        return all(word == "*" or ipaddress.ip_network(word) is not None for word in split_words(text))
    except ValueError:
        return False


def _priorities(text: str) -> dict[str, int]:
    """Parses priorities by name. Raises ValueError."""
    pairs = [word.rpartition("=") for word in split_words(text)]
    return {name.strip(): int(priority) for name, _, priority in pairs}


def _are_objectives(text: str) -> bool:
    try:
        priorities = _priorities(text)
    except ValueError:
        return False
    ranks = {*priorities.values(), 0}
    n_first, n_last = sum(rank > 0 for rank in ranks), sum(rank < 0 for rank in ranks)
    is_named = all(priorities) and len(priorities) == len(split_words(text))
    return is_named and max(n_first, n_last) <= _MOST_RANKS


_MOST_RANKS = 4  # before those of priority 0, and behind them: as many as there are classes of a job's priority
_NETWORKS = Check(_are_networks, "must be addresses, networks as 10.0.0.0/8, or *, separated by commas")
_OBJECTIVES = Check(
    _are_objectives,
    "must be NAME=PRIORITY, separated by commas: whole numbers, at most four different ones above 0 and four below",
)


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Settings of who may call a server."""

    api_keys: str = setting(
        "",
        "comma-separated API keys, one of which each request must carry; empty: no key is needed",
        is_secret=True,
    )
    api_key_file: str = setting("", "path of a file with more API keys, one a line")
    api_keys_file: str = setting(
        "",
        "path of a TOML file of API keys with limits, models and usage of their own, which 'corosrv keys add' writes; "
        "read again when it changes",
    )
    cors_origins: str = setting(
        "",
        "comma-separated origins whose web pages may call, as https://page.example; localhost: pages of this machine; "
        "*: any; empty: any if API keys are set, otherwise localhost, and as a blueprint what the app says that it "
        "is in. Only origins given in full may send credentials",
    )
    allowed_hosts: str = setting(
        "",
        "comma-separated host names by which a server without API keys may be called, besides local names and "
        "addresses; *.example.com: every name below; *: any; empty: only local ones on a loopback address, any on "
        "others and as a blueprint in another Flask app",
    )
    gateway_from: str = setting(
        "",
        "comma-separated addresses and networks of the inference gateway before this server, as 10.0.0.0/8: from "
        "there, x-gateway-inference-fairness-id divides the machine, and x-gateway-inference-objective ranks requests; "
        "*: from anywhere; empty: these headers are ignored",
        check=_NETWORKS,
    )
    objectives: str = setting(
        "",
        "comma-separated priorities of the gateway's InferenceObjectives, as premium=10,batch=-10; the highest goes "
        "first, and a request that names none of them has 0",
        check=_OBJECTIVES,
    )

    @property
    def gateway_networks(self) -> tuple[str, ...]:
        return split_words(self.gateway_from)

    @property
    def objective_priorities(self) -> dict[str, int]:
        """The priority of each InferenceObjective, by its name."""
        return _priorities(self.objectives)
