"""Settings of what is loaded beside a model: a projector for images, and a smaller model that guesses its answers."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings.sources import DAY, MAX_INT32, between, none_or, of_bytes, or_else, setting


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of a model's projector, and of the process that encodes images with it."""

    mmproj: str = setting("", "path of a projector GGUF, with which the model takes images; empty: it reads text alone")
    mmproj_auto: bool = setting(True, "0: a model of a hub is served without the projector that lies beside it there")
    encoder_threads: int = setting(
        0, "compute threads of the process that encodes images; 0: physical cores", check=between(0, 1024)
    )
    encoder_nice: int = setting(
        15,
        "nice value of that process above the server's; more: an image takes longer, and slows running streams less",
        check=between(0, 19),
    )
    encoder_share: float | None = setting(
        None,
        "time that it gets after each step of running streams, as a part of the step's, where the processors do not "
        "suffice for both; 0: the kernel divides the time by the nice value; unset: as much as one more stream has, a "
        "quarter at least, and more the longer an image waits",
        check=none_or(between(0, 1)),
    )
    itl_ms: float = setting(
        50.0,
        "milliseconds from one token of a stream to the next that this process, with no share set, keeps within; where "
        "steps alone take nearly as long it has a tenth of their time",
        check=between(1, 60_000),
    )
    mmproj_offload: bool = setting(True, "0: images are encoded on the processor, also where a GPU is there")
    image_min_tokens: int = setting(
        0,
        "least rows of an image, where the projector makes fewer of a smaller one; 0: as its file says",
        check=between(0, 1_000_000),
    )
    image_max_tokens: int = setting(
        0,
        "most rows of an image, where the projector makes more of a larger one; 0: as many as its file says",
        check=between(0, 1_000_000),
    )
    encoder_blocks: int = setting(
        64, "blocks of 16 rows of images that may be on their way from that process", check=between(1, 65_536)
    )
    encoder_queue: int = setting(64, "images that may wait for that process", check=between(1, 100_000))
    encode_timeout_s: float = setting(
        300.0,
        "seconds that the encode of one image may take before the process is replaced, not counting the time in which "
        "it cannot run",
        check=between(0.1, DAY),
    )
    image_cache_bytes: int = setting(
        268_435_456, "bytes of encoded images kept for requests that have them again; 0: none", check=of_bytes(0)
    )


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """Settings of a second, smaller model that guesses how answers go on."""

    model_draft: str = setting(
        "",
        "path of the GGUF of a smaller model with the same tokens, which guesses what comes next where that is faster: "
        "texts stay what they are; empty: none guesses",
    )
    ctx_draft: int = setting(
        0,
        "tokens of context that the draft model has per slot, beyond which it guesses nothing; 0: as many as the slot",
        check=or_else(0, between(16, MAX_INT32)),
    )
    draft_p_min: float = setting(
        0.0, "probability that the draft model must give a guess; 0: any, as long as it pays", check=between(0, 1)
    )
