"""Settings of a predictor. Checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.checks import DAY, HOSTS, MAX_INT32, PLAIN, URL, at_least, between, empty_or, none_or
from corosrv.contracts.settings.sources import setting, split_words

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
