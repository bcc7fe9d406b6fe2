"""Settings of who may call a server, of the inference gateway before it, and of the MCP servers behind it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from corosrv.base.outgoing import is_http_url, origin
from corosrv.contracts.settings.sources import Check, between, setting, split_words


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


# No @, so no credentials; no #, no backslash, no space: nothing that two parsers of URLs could see differently.
_PLAIN_URL = re.compile(r"[A-Za-z0-9._~:/?\[\]!$&'()*+,;=%-]+")
_MCP_SERVER = re.compile(r"(?:(?P<label>[A-Za-z][A-Za-z0-9_-]{0,63})=)?(?P<url>https?://.+)", re.IGNORECASE)


def is_plain_url(url: str) -> bool:
    """Returns whether a URL is http or https, without credentials, a fragment, or a path that leads upwards."""
    if not _PLAIN_URL.fullmatch(url) or not is_http_url(url):
        return False
    segments = unquote(urlsplit(url).path).split("/")
    return not {".", ".."} & set(segments) and "%2f" not in url.lower() and "\\" not in "".join(segments)


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that requests may name: by its URL, or one below it, and by its label where it has one."""

    url: str
    label: str = ""

    def has(self, url: str) -> bool:
        """Returns whether a plain URL is this server's, or below it."""
        ours, theirs = urlsplit(self.url), urlsplit(url)
        if origin(url) != origin(self.url) or (ours.query and ours.query != theirs.query):
            return False
        return theirs.path == ours.path or theirs.path.startswith(ours.path.rstrip("/") + "/")


def parse_mcp_servers(text: str) -> tuple[McpServer, ...]:
    """Parses the servers of a setting. Raises ValueError for one that is none, and for a label that comes twice."""
    servers = []
    for word in split_words(text):
        match = _MCP_SERVER.fullmatch(word)
        if match is None or not is_plain_url(match["url"]):
            raise ValueError(f"{word!r} is no MCP server")
        servers.append(McpServer(match["url"], match["label"] or ""))
    labels = [server.label for server in servers if server.label]
    if len(set(labels)) < len(labels):
        raise ValueError("two MCP servers have the same label")
    return tuple(servers)


def _are_mcp_servers(text: str) -> bool:
    try:
        return parse_mcp_servers(text) is not None
    except ValueError:
        return False


_MOST_RANKS = 4  # before those of priority 0, and behind them: as many as there are classes of a job's priority
_NETWORKS = Check(_are_networks, "must be addresses, networks as 10.0.0.0/8, or *, separated by commas")
_OBJECTIVES = Check(
    _are_objectives,
    "must be NAME=PRIORITY, separated by commas: whole numbers, at most four different ones above 0 and four below",
)
_MCP_SERVERS = Check(
    _are_mcp_servers,
    "must be http or https URLs without credentials, or LABEL=URL, separated by commas, and no label twice",
)


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Settings of who may call a server, and which MCP servers it may call for them."""

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
    mcp_servers: str = setting(
        "",
        "comma-separated MCP servers whose tools models may call for requests of /v1/responses: URLs, each with all "
        "below it, or LABEL=URL for requests that name the label alone; needs pip install 'corosrv[mcp]'; empty: none",
        check=_MCP_SERVERS,
    )
    mcp_timeout_s: float = setting(
        60.0, "seconds in which an MCP server must have listed its tools, or answered a call", check=between(0.1, 3600)
    )

    @property
    def gateway_networks(self) -> tuple[str, ...]:
        return split_words(self.gateway_from)

    @property
    def objective_priorities(self) -> dict[str, int]:
        """The priority of each InferenceObjective, by its name."""
        return _priorities(self.objectives)

    @property
    def allowed_mcp_servers(self) -> tuple[McpServer, ...]:
        return parse_mcp_servers(self.mcp_servers)
