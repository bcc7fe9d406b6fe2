"""Settings of authors' code: a predictor, an application of handlers, and KServe's v2 protocol. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import (
    DAY,
    FOLDER,
    HOSTS,
    MAX_INT32,
    PLAIN,
    URL,
    Check,
    at_least,
    between,
    empty_or,
    none_or,
    of_bytes,
    or_else,
    setting,
    split_words,
)

MOST_WORKERS = 256  # processes of one pool
REFERENCE = Check(
    lambda text: not text or (":" in text and all(map(str.strip, text.rsplit(":", 1)))),
    "must be MODULE:NAME or FILE.py:NAME",
)


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """Settings of one application, read once at the start; times in seconds, sizes in bytes."""

    worker_app: str = setting(
        "", "application whose handlers are served, as MODULE:NAME or FILE.py:NAME; empty: none", check=REFERENCE
    )
    app_dir: str = setting("", "folder that the application is imported from; empty: this one", check=empty_or(FOLDER))
    joinable: bool = setting(
        False, "1: serve the handlers of workers that others start (corosrv worker --join), also without an application"
    )
    factory: bool = setting(False, "1: the application's name is that of a function that makes it")
    workers: int | None = setting(
        None,
        "processes; default 1. With an application, those that run its functions; otherwise those of corosrv serve, "
        "each with its own copy of the model",
        check=none_or(between(1, MOST_WORKERS)),
    )
    start_timeout: float = setting(
        120.0, "seconds in which one of the application's pools must have started", check=between(1, DAY)
    )
    shutdown_grace: float = setting(
        25.0, "seconds that running calls get to finish after a stop", check=between(0, DAY)
    )
    hang_grace: float = setting(
        10.0,
        "seconds that a handler may go on after its cancel or deadline, before its process is replaced",
        check=between(0.1, DAY),
    )
    max_queue: int = setting(4096, "calls that may wait in all queues of handlers", check=between(0, 1_000_000))
    queue_bytes: int = setting(268_435_456, "bytes that the tensors of waiting calls may take", check=of_bytes(1024))
    gpus: float = setting(
        -1.0,
        "graphics cards that the application's workers may claim together; -1: all of this machine",
        check=or_else(-1, between(0, 1024)),
    )

    def __post_init__(self) -> None:
        sources.check(self)

    @property
    def is_wanted(self) -> bool:
        """Tells whether handlers are to be served: an application's, or those of workers that join."""
        return bool(self.worker_app) or self.joinable


@dataclass(frozen=True, kw_only=True)
class KserveSettings:
    """Settings of KServe's v2 protocol, over REST and gRPC."""

    v2: bool = setting(True, "1: the paths below /v2 answer; 0: they are not there")
    v2_max_body_bytes: int = setting(
        67_108_864,
        "larger bodies and messages of the v2 protocol are refused with 413, and more JSON in an answer with 400",
        check=at_least(1024),
    )
    grpc_port: int | None = setting(
        None,
        "port for the v2 protocol over gRPC, which needs corosrv[grpc]; none if not set",
        check=none_or(between(0, 65535)),
    )
    grpc_host: str = setting("", "address to listen on for gRPC; empty: 127.0.0.1, or the first one of --host")

    def __post_init__(self) -> None:
        sources.check(self)


MOST_SLOTS = 4096


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Settings of one predictor, read once at the start; times in seconds, sizes in bytes.

    The variables named COG_... are those that Cog's own server reads; they count where corosrv's own are not set.
    """

    predictor: str = setting("", "predictor to serve, as FILE.py:CLASS, FILE.py:FUNCTION or MODULE:CLASS; empty: none")
    predictor_slots: int | None = setting(
        None,
        "predictions that run at once; default: --slots if no model is served, what the predictor declares, or one",
        also="COG_MAX_CONCURRENCY",
        check=none_or(between(1, MOST_SLOTS)),
    )
    setup_timeout: float = setting(
        0.0,
        "seconds from the worker's start until it is set up; 0: no limit",
        also="COG_SETUP_TIMEOUT",
        check=between(0, DAY),
    )
    upload_url: str = setting(
        "", "URL to which output files are uploaded; empty: they become data URLs", check=empty_or(URL)
    )
    await_explicit_shutdown: bool = setting(False, "1: SIGTERM is ignored; POST /shutdown and SIGINT stop the server")
    drain_timeout: float = setting(
        60.0, "seconds that running predictions get to finish after a stop", check=between(0, DAY)
    )
    restart_worker: bool = setting(
        False, "1: a worker process that died is started again; 0: the predictor stays DEFUNCT"
    )
    webhook_interval: float = setting(
        0.5,
        "seconds between two webhooks about new output or logs",
        also="COG_THROTTLE_RESPONSE_INTERVAL",
        check=between(0, DAY),
    )
    webhook_token: str = setting(
        "", "bearer token that webhooks carry", also="WEBHOOK_AUTH_TOKEN", check=PLAIN, is_secret=True
    )
    webhook_hosts: str = setting(
        "",
        "comma-separated hosts that webhooks may go to: names, *.example.com for all below, addresses, networks as "
        "10.0.0.0/8; empty: any. Never to link-local addresses, to this machine only for clients that are on it",
        check=HOSTS,
    )
    user_agent: str = setting(
        "",
        "User-Agent of downloads of inputs; empty: corosrv and its version",
        also="COG_USER_AGENT",
        check=PLAIN,
    )
    stream_history: int = setting(
        1024,
        "events of each prediction kept for clients that connect later; 0: none",
        also="COG_STREAM_HISTORY_CAPACITY",
        check=between(0, MAX_INT32),
    )
    result_ttl: float = setting(
        60.0, "seconds that a finished prediction is kept; 0: not at all", check=between(0, DAY)
    )
    max_body: int = setting(
        100 << 20, "bytes of a prediction's request; larger ones are refused with 413", check=at_least(1024)
    )

    def __post_init__(self) -> None:
        sources.check(self)

    @property
    def webhook_destinations(self) -> tuple[str, ...]:
        """The hosts of `webhook_hosts`, each by itself."""
        return split_words(self.webhook_hosts)
