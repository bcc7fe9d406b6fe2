"""How a server behaves towards its clients, checked and frozen. `sources` says where settings come from."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.settings import sources
from corosrv.settings.checks import (
    DAY,
    FOLDER,
    Check,
    at_least,
    between,
    empty_or,
    of_bytes,
    or_else,
)
from corosrv.settings.sources import setting


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What holds for a whole server, whatever it serves."""

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
    context_shift: bool = setting(
        False,
        "0: a full context ends the answer; dropping its oldest tokens is not built yet",
        check=Check(lambda shifts: not shifts, "must be 0: dropping a context's tokens is not built yet"),
    )
    n_predict: int = setting(
        -1,
        "tokens of an answer when the request does not say; -1: until the context is full",
        check=or_else(-1, at_least(1)),
    )
    temp: float = setting(0.8, "temperature when the request does not say", check=between(0, 100))
    seed: int = setting(-1, "seed when the request does not say; -1: random", check=between(-1, 2**32 - 1))
    strict_model: bool = setting(
        False, "1: an unknown model is 404, as it is where several are served; 0: the only one answers to every name"
    )
    max_body_bytes: int = setting(33_554_432, "larger request bodies are refused with 413", check=at_least(1024))
    bodies_bytes: int = setting(
        268_435_456,
        "bytes of the bodies of all requests that are in memory at once; more are refused with 503",
        check=of_bytes(1024),
    )
    response_store_bytes: int = setting(
        67_108_864,
        "bytes of answers of the Responses API kept to be read again and gone on from, an equal part for each API key; "
        "0: none are",
        check=of_bytes(0),
    )
    api_keys: str = setting("", "comma-separated bearer keys; empty: no key is asked for")
    cors_origins: str = setting(
        "",
        "comma-separated origins whose web pages may call, as https://page.example; localhost: pages of this machine; "
        "*: any; empty: any if API keys are set, otherwise localhost. Only origins given in full may send credentials",
    )
    allowed_hosts: str = setting(
        "",
        "comma-separated host names by which a server without API keys may be called, besides local names and "
        "addresses; *.example.com: every name below; *: any; empty: only local ones on a loopback address, any on "
        "others and as a blueprint in another Flask app",
    )
    metrics: bool = setting(True, "1: GET /metrics answers")
    embeddings: bool = setting(True, "1: embeddings are given; 0: 501")
    slots_endpoint: bool = setting(True, "1: GET /slots answers")
    props: bool = setting(False, "1: POST /props answers")
    slot_save_path: str = setting(
        "", "folder for what slots hold, on request; empty: none is kept", check=empty_or(FOLDER)
    )
    slot_save_bytes: int = setting(
        17_179_869_184,
        "bytes of files in slot_save_path, beyond which no slot is saved; 0: no limit",
        check=of_bytes(0),
    )
    sse_ping_interval: float = setting(
        15.0, "seconds of silence in a stream before a comment line; -1: never", check=or_else(-1, between(0.1, DAY))
    )
    write_timeout_s: float = setting(
        30.0, "seconds a client may accept nothing before its stream is ended", check=between(1, DAY)
    )
    head_timeout_s: float = setting(10.0, "seconds in which the head of a request has to arrive", check=between(1, DAY))
    body_timeout_s: float = setting(30.0, "seconds in which the body of a request has to arrive", check=between(1, DAY))
    body_rate: float = setting(
        1024.0, "bytes a second that a body has to bring, after 10 seconds", check=between(1, 1_000_000_000)
    )
    drain_s: float = setting(
        25.0, "seconds that running streams get to finish after a stop signal", check=between(0, DAY)
    )
    engine: str = setting(
        "inproc",
        "inproc: the engine lives in this process",
        check=Check(lambda engine: engine == "inproc", "must be 'inproc': a shared engine is not built yet"),
    )

    def __post_init__(self) -> None:
        sources.check(self)
        if self.bodies_bytes < self.max_body_bytes:
            words = f"must be at least COROSRV_MAX_BODY_BYTES, which is {self.max_body_bytes}"
            raise sources.refused("bodies_bytes", words, str(self.bodies_bytes))

    @property
    def keys(self) -> tuple[str, ...]:
        return sources.words(self.api_keys)

    @property
    def origins(self) -> tuple[str, ...]:
        return sources.words(self.cors_origins)

    @property
    def hosts(self) -> tuple[str, ...]:
        return sources.words(self.allowed_hosts)
