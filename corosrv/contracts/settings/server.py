"""Settings of a server: how it treats its clients, what images they may send, and where operators reach it.

Checked and frozen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import sources
from corosrv.contracts.settings.access import AccessSettings
from corosrv.contracts.settings.key_file import KeyEntry, read_keys
from corosrv.contracts.settings.sources import (
    DAY,
    FOLDER,
    HOSTS,
    URL,
    WEBHOOK_SECRETS,
    Check,
    at_least,
    between,
    empty_or,
    none_or,
    of_bytes,
    one_of,
    or_else,
    setting,
    split_words,
)

# Pillow warns of larger ones by itself.
_MOST_PIXELS = 89_000_000
_LEAST_SHARES = 32
PIXEL_BYTES = 3


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Settings of the images that requests may have, for models that take some."""

    image_count: int = setting(100, "images of one request", check=between(1, 10_000))
    image_bytes: int = setting(20_971_520, "bytes of one image, as it is sent or fetched", check=of_bytes(1))
    image_pixels: int = setting(25_165_824, "pixels of one image; 3 bytes each", check=between(1, _MOST_PIXELS))
    image_total_pixels: int = setting(
        67_108_864, "pixels of all images of one request together", check=between(1, 2**31)
    )
    image_memory_bytes: int = setting(
        536_870_912,
        "bytes that the images of all requests may take in memory; more are refused with 503",
        check=of_bytes(1024),
    )
    image_hosts: str = setting(
        "",
        "comma-separated hosts that images are fetched from by their URLs: names, *.example.com for all below, "
        "addresses, networks as 10.0.0.0/8; empty: none are fetched. Addresses that are not public count only if they "
        "are listed themselves; link-local ones never do",
        check=HOSTS,
    )
    image_fetch_s: float = setting(10.0, "seconds in which an image must have been fetched", check=between(0.1, 600))

    def __post_init__(self) -> None:
        sources.check(self)
        # Files that are stored are kept beside their pixels, and are not larger than these.
        most = 2 * PIXEL_BYTES * self.image_total_pixels + self.image_bytes
        if self.image_memory_bytes < most:
            raise SettingsError(
                f"image_memory_bytes must be at least {most}: {2 * PIXEL_BYTES} x image_total_pixels + image_bytes"
            )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of `image_hosts`, each by itself."""
        return split_words(self.image_hosts)


PATH_PREFIX = Check(
    lambda text: re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", text) is not None,
    "must be a path that begins with a slash and does not end with one",
)
ADDRESS = Check(lambda text: bool(text.strip()), "must be an address to listen on")


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """Says where operators find a server that has workers or upstreams to manage."""

    run_dir: str = setting(
        "",
        "folder for the management socket, which nobody else may enter; made if missing; empty: one of this user's",
    )
    mgmt_port: int | None = setting(
        None,
        "port for the management API over TCP, beside its socket; needs --mgmt-token-file; none if not set",
        check=none_or(between(0, 65535)),
    )
    mgmt_host: str = setting("127.0.0.1", "address of that port", check=ADDRESS)
    mgmt_token_file: str = setting("", "file with the token that calls to --mgmt-port must carry")
    mgmt_certfile: str = setting(
        "", "certificate in PEM, with which --mgmt-port speaks TLS; empty: it speaks plain HTTP"
    )
    mgmt_keyfile: str = setting("", "key of --mgmt-certfile; empty: it is in the same file")

    def __post_init__(self) -> None:
        sources.check(self)


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """Settings of which endpoints a server has."""

    api_prefix: str = setting(
        "",
        "path below which everything is, as /llm, for a proxy that leaves it in; empty: none",
        check=empty_or(PATH_PREFIX),
    )
    page: bool = setting(True, "1: browsers get the page to chat in at `/`; 0: a list of what is served")
    metrics: bool = setting(True, "1: GET /metrics answers")
    embeddings: bool = setting(True, "1: POST /v1/embeddings answers; 0: 501")
    prompt_embeds: bool = setting(False, "1: POST /v1/completions takes embedding rows as prompt_embeds; 0: 400")
    slots_endpoint: bool = setting(True, "1: GET /slots answers")
    props: bool = setting(False, "1: POST /props answers")
    slot_save_path: str = setting(
        "", "folder in which clients may save the contents of slots; empty: none may be saved", check=empty_or(FOLDER)
    )
    slot_save_bytes: int = setting(
        17_179_869_184,
        "bytes that all files in slot_save_path may take; more are not saved; 0: no limit",
        check=of_bytes(0),
    )
    files_path: str = setting(
        "",
        "folder for the files and batches of OpenAI's API, which several servers may share; empty: there are none",
        check=empty_or(FOLDER),
    )
    files_bytes: int = setting(
        10_737_418_240,
        "bytes that all files in files_path may take, an equal part for each API key",
        check=of_bytes(1024),
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits of requests: their size, their time, and what is kept of their answers."""

    max_body_bytes: int = setting(33_554_432, "larger request bodies are refused with 413", check=at_least(1024))
    file_bytes: int = setting(
        209_715_200, "bytes of one file that a client uploads; larger ones are refused with 413", check=of_bytes(1)
    )
    batch_lines: int = setting(
        8,
        "lines of all batches that run at once, at most; a quarter of them beside requests that run",
        check=between(1, 1024),
    )
    bodies_bytes: int = setting(
        268_435_456,
        "bytes that the bodies of all requests may take in memory; more are refused with 503",
        check=of_bytes(1024),
    )
    response_store_bytes: int = setting(
        67_108_864,
        "bytes of stored answers of the Responses API and of conversations, an equal part for each API key; 0: none "
        "are stored",
        check=of_bytes(0),
    )
    idempotency_bytes: int = setting(
        67_108_864,
        "bytes of answers kept for requests that are repeated with their Idempotency-Key, an equal part for each API "
        "key, and the same again for calls over v2 of handlers and of language models; 0: the header is ignored",
        check=of_bytes(0),
    )
    idempotency_s: float = setting(
        86_400.0, "seconds for which such an answer is kept, unless newer ones need the room", check=between(1, 7 * DAY)
    )
    resume_s: float = setting(
        60.0,
        "seconds for which a stream that its client may resume runs on when the client has left, until it is "
        "cancelled; 0: no stream can be resumed",
        check=between(0, DAY),
    )
    resume_kept_s: float = setting(
        300.0, "seconds for which the events of such a stream are kept after its end", check=between(0, DAY)
    )
    resume_stream_bytes: int = setting(
        4_194_304, "bytes of events kept of one such stream; beyond them the oldest go", check=of_bytes(65_536)
    )
    resume_bytes: int = setting(
        67_108_864, "bytes of events kept of all such streams, an equal part for each API key", check=of_bytes(65_536)
    )
    head_timeout_s: float = setting(10.0, "seconds in which the head of a request must arrive", check=between(1, DAY))
    body_timeout_s: float = setting(30.0, "seconds in which the body of a request must arrive", check=between(1, DAY))
    body_rate: float = setting(
        1024.0, "bytes a second at which a body must arrive, after 10 seconds", check=between(1, 1_000_000_000)
    )
    write_timeout_s: float = setting(
        30.0, "seconds that a client may accept no data before its answer is ended", check=between(1, DAY)
    )
    sse_ping_interval: float = setting(
        15.0, "seconds of silence in a stream before a comment line; -1: never", check=or_else(-1, between(0.1, DAY))
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(AccessSettings, LimitSettings, EndpointSettings):
    """Settings of a whole server, whatever it serves."""

    model_bytes: int = setting(
        0,
        "bytes that all loaded models may take; idle ones make room, the least recently used first; 0: no limit",
        check=of_bytes(0),
    )
    model_idle_s: float = setting(
        0.0, "seconds without a job after which a model is unloaded; 0: never", check=between(0, DAY)
    )
    model_wait_s: float = setting(
        300.0, "seconds that a request waits for its model to be loaded", check=between(0, DAY)
    )
    engine: str = setting(
        "",
        "inproc: models run in the server's own process; process: each in one of its own, which all worker processes "
        "share and which is started again if it dies; empty: inproc for one worker process, process for several",
        check=empty_or(one_of("inproc", "process")),
    )
    strict_model: bool = setting(
        False,
        "1: an unknown model name is 404, as it always is with several models; 0: a single model answers to any",
    )
    log_level: str = setting(
        "info",
        "debug: a line for every job, info: for each that ended early, warning: for none",
        check=one_of("debug", "info", "warning"),
    )
    log_format: str = setting(
        "text",
        "how lines of log are written: text, or json (corosrv serve: gunicorn's too)",
        check=one_of("text", "json"),
    )
    access_log: str = setting(
        "off",
        "text or json: a line for each request that has ended, on standard output; off: none; 1 stands for the form "
        "of log_format, 0 for off",
        check=one_of("off", "text", "json", "0", "1"),
        takes_flags=True,
    )
    traces: bool = setting(
        False,
        "1: spans of each request go to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, over HTTP; needs "
        "pip install 'corosrv[otel]'",
    )
    unloadable_s: float = setting(
        10.0,
        "seconds after which a server none of whose models could be loaded ends, with a status on which systemd starts "
        "it again; -1: it goes on and says so",
        check=or_else(-1, between(0, DAY)),
    )
    webhook_secret: str = setting(
        "",
        "secrets that webhooks are signed with, as whsec_... of Standard Webhooks, separated by spaces or commas: each "
        "adds a signature, the first one first; empty: none are signed",
        check=WEBHOOK_SECRETS,
        is_secret=True,
    )
    webhook_secret_file: str = setting("", "path of a file with more such secrets, one a line")
    response_webhook_url: str = setting(
        "",
        "URL that is told when a response in the background ends, by a webhook as OpenAI sends it; needs "
        "webhook_secret or webhook_secret_file; empty: nobody is told",
        check=empty_or(URL),
    )
    drain_s: float = setting(
        25.0, "seconds that running streams get to finish after a stop signal", check=between(0, DAY)
    )

    def __post_init__(self) -> None:
        sources.check(self)
        # Read here as well, so that bad files stop the start.
        self.keys, self.limited_keys  # noqa: B018
        if not self.webhook_secrets and self.response_webhook_url:
            words = "needs COROSRV_WEBHOOK_SECRET or COROSRV_WEBHOOK_SECRET_FILE, with which its webhooks are signed"
            raise SettingsError(f"COROSRV_RESPONSE_WEBHOOK_URL {words}")
        if self.bodies_bytes < self.max_body_bytes:
            words = f"must be at least COROSRV_MAX_BODY_BYTES, which is {self.max_body_bytes}"
            raise sources.bad_value("bodies_bytes", words, str(self.bodies_bytes))

    @property
    def access_log_form(self) -> str:
        """Returns how lines of the access log are written: text or json; off where there are none."""
        return {"0": "off", "1": self.log_format}.get(self.access_log, self.access_log)

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys of both settings. Reads the file; raises SettingsError where it cannot or has none."""
        return sources.split_words(self.api_keys) + _lines("api_key_file", self.api_key_file, "API key")

    @property
    def webhook_secrets(self) -> str:
        """The secrets of both settings. Reads the file; raises SettingsError where it cannot or has none."""
        in_file = " ".join(_lines("webhook_secret_file", self.webhook_secret_file, "secret"))
        if not WEBHOOK_SECRETS.is_good(in_file):
            raise sources.bad_value("webhook_secret_file", WEBHOOK_SECRETS.words, "what is in it")
        return f"{self.webhook_secret} {in_file}".strip()

    @property
    def limited_keys(self) -> tuple[KeyEntry, ...]:
        """The keys of `api_keys_file`. Reads the file; raises SettingsError."""
        return read_keys(self.api_keys_file) if self.api_keys_file else ()

    @property
    def needs_key(self) -> bool:
        """Tells whether requests need a key."""
        return bool(self.api_keys_file or self.keys)

    @property
    def n_shares(self) -> int:
        """Counts the parts into which the room for callers' answers is divided: one for each key.

        Where keys may be added while the server runs there is room for some.
        """
        n_keys = len(self.keys) + len(self.limited_keys)
        return max(n_keys, _LEAST_SHARES) if self.api_keys_file else n_keys

    @property
    def origins(self) -> tuple[str, ...]:
        return sources.split_words(self.cors_origins)

    @property
    def hosts(self) -> tuple[str, ...]:
        return sources.split_words(self.allowed_hosts)


def _lines(name: str, file: str, content: str) -> tuple[str, ...]:
    """Returns the lines of a setting's file, without the empty ones. Raises SettingsError."""
    if not file:
        return ()
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{sources.PREFIX}{name.upper()} cannot be read: {error}") from error
    in_file = tuple(line.strip() for line in lines if line.strip())
    if not in_file:
        raise SettingsError(f"{sources.PREFIX}{name.upper()} has no {content} in it")
    return in_file
