"""How a predictor is served, checked and frozen. corosrv.sources says where settings come from."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.errors import SettingsError
from corosrv.sources import DAY, MAX_INT32, PREFIX, setting

MOST_SLOTS = 4096


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """What is told of one predictor; read once, at start. Seconds and bytes, where nothing else is said.

    The variables named COG_... are those that Cog's own server reads; they count where nothing else is said.
    """

    predictor: str = setting("", "FILE.py:CLASS, FILE.py:FUNCTION or a module's; empty: none is served")
    predictor_slots: int | None = setting(
        None,
        "predictions that run at once; unsaid: --slots where no model is served, what the predictor declares, or one",
        also="COG_MAX_CONCURRENCY",
    )
    setup_timeout: float = setting(
        0.0, "seconds from the worker's start until it is set up; 0: no limit", also="COG_SETUP_TIMEOUT"
    )
    upload_url: str = setting("", "where files of outputs are put; empty: they become data URLs")
    await_explicit_shutdown: bool = setting(False, "1: SIGTERM is ignored; POST /shutdown and SIGINT stop the server")
    drain_timeout: float = setting(60.0, "seconds that running predictions get to finish after a stop")
    restart_worker: bool = setting(False, "1: a worker that died is started again; 0: the predictor is DEFUNCT")
    webhook_interval: float = setting(
        0.5, "seconds between two webhooks about new output or logs", also="COG_THROTTLE_RESPONSE_INTERVAL"
    )
    webhook_token: str = setting("", "bearer token that webhooks carry", also="WEBHOOK_AUTH_TOKEN")
    user_agent: str = setting(
        "", "what downloads of inputs call themselves; empty: corosrv and its version", also="COG_USER_AGENT"
    )
    stream_history: int = setting(
        1024, "events kept of each prediction for those who come later; 0: none", also="COG_STREAM_HISTORY_CAPACITY"
    )
    result_ttl: float = setting(60.0, "seconds that a finished prediction is remembered; 0: not at all")
    max_body: int = setting(100 << 20, "bytes of a prediction's request; larger ones are refused with 413")

    def __post_init__(self) -> None:
        slots = self.predictor_slots
        self._check("predictor_slots", slots is None or 1 <= slots <= MOST_SLOTS, f"must be from 1 to {MOST_SLOTS}")
        for name in ("setup_timeout", "drain_timeout", "webhook_interval", "result_ttl"):
            self._check(name, 0 <= getattr(self, name) <= DAY, f"must be from 0 to {DAY}")
        self._check("stream_history", 0 <= self.stream_history <= MAX_INT32, f"must be from 0 to {MAX_INT32}")
        self._check("max_body", self.max_body >= 1024, "must be at least 1024")
        is_url = not self.upload_url or self.upload_url.startswith(("http://", "https://"))
        self._check("upload_url", is_url, "must be an http or https URL")
        for name in ("webhook_token", "user_agent"):
            is_plain = getattr(self, name).isascii() and getattr(self, name).isprintable()
            self._check(name, getattr(self, name) == "" or is_plain, "must be printable ASCII")

    def _check(self, name: str, is_good: bool, words: str) -> None:
        # Written so that a NaN, which compares false with everything, is refused too.
        if not is_good:
            value = "this value" if name == "webhook_token" else repr(getattr(self, name))
            raise SettingsError(f"{PREFIX}{name.upper()} {words}, not {value}")
