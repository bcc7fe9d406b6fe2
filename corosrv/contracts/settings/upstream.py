"""Settings of upstreams, the servers that calls are forwarded to, and of the API by which they come and go."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import DAY, at_least, between, none_or, of_bytes, one_of
from corosrv.contracts.settings.sources import setting

POLICIES = ("least_loaded", "power_of_two", "round_robin", "sticky", "prefix")


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """Settings of forwarding, read once at the start; times in seconds, sizes in bytes."""

    upstream: str = setting(
        "",
        "URL of another server of models that requests are forwarded to, with its options, as "
        "http://host:8080?concurrency=16&model=NAME&weight=2&api_key_env=VARIABLE&abort=sglang; may be given several "
        "times, in the environment with commas or spaces between",
    )
    elastic: bool = setting(
        False, "1: requests are taken though no upstream is named yet: those are added while the server runs"
    )
    upstream_policy: str = setting(
        "least_loaded",
        "which upstream gets a request: least_loaded, power_of_two (the less loaded of two), round_robin, sticky (the "
        "same for each session) or prefix (one that has read the beginning of the prompt before)",
        check=one_of(*POLICIES),
    )
    upstream_queue: int = setting(10_000, "requests that may wait for upstreams", check=between(0, 10_000_000))
    upstream_queue_bytes: int = setting(
        268_435_456, "bytes that the bodies of those that wait may take", check=of_bytes(1024)
    )
    upstream_patience: float = setting(
        30.0, "seconds that requests wait while no upstream is ready", check=between(0, DAY)
    )
    upstream_first_byte: float = setting(
        600.0, "seconds in which an upstream must begin its answer", check=between(0.1, DAY)
    )
    upstream_idle: float = setting(
        300.0, "seconds that an upstream may send nothing inside an answer", check=between(0.1, DAY)
    )
    upstream_spill: int | None = setting(
        None,
        "requests that may wait for a model served here before others go to upstreams that serve it as well; default: "
        "as many as it has slots",
        check=none_or(at_least(0)),
    )

    router_paths: bool = setting(
        False,
        "1: the paths of SGLang's router (/workers, /add_worker, /remove_worker, /list_workers, /get_loads, "
        "/abort_request) answer at this server's own port as well, to whoever has the token of mgmt_token_file",
    )

    def __post_init__(self) -> None:
        sources.check(self)

    @property
    def is_wanted(self) -> bool:
        """Returns True if requests are to be forwarded at all."""
        return bool(self.urls) or self.elastic

    @property
    def urls(self) -> tuple[str, ...]:
        """Returns the upstreams of the start, each with its options."""
        return sources.split_words(self.upstream.replace(" ", ","))
