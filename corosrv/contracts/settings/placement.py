"""Settings of where a model's weights and cache lie, and how its context is made: libllama's own, by its names.

And of what is loaded beside it: a projector for images, and a smaller model that guesses its answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.contracts.settings import sources
from corosrv.contracts.settings.sources import (
    DAY,
    MAX_INT32,
    Check,
    at_least,
    between,
    none_or,
    of_bytes,
    one_of,
    or_else,
    setting,
)

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
PLAIN_CACHE_TYPES = CACHE_TYPES[:3]
SPLIT_MODES = ("none", "layer", "row", "tensor")
NUMA = ("", "distribute", "isolate", "numactl")
ROPE_SCALINGS = ("", "none", "linear", "yarn")
DEFAULT_CACHE_TYPE = "f16"


def _are_parts(text: str) -> bool:
    try:
        parts = [float(part) for part in sources.split_words(text)]
    except ValueError:
        return False
    return all(0 <= part < 1e6 for part in parts) and (not parts or sum(parts) > 0)


def _is_layer_count(text: str) -> bool:
    return text in ("auto", "all") or (text.isascii() and text.isdigit() and len(text) < 7)


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Settings of a model's place on devices, its cache and its positions; those of GPUs need a build for one."""

    gpu_layers: str = setting(
        "auto",
        "layers that go to GPUs: a number, all, or auto, which is all where libllama has a GPU",
        check=Check(_is_layer_count, "must be a number of layers, 'all' or 'auto'"),
    )
    device: str = setting(
        "", "comma-separated devices to use, by the names that corosrv doctor lists; none: the processor; empty: all"
    )
    candidates: str = setting(
        "auto",
        "where the largest logits of a step are found: device, that of the output layer; processor, which then gets "
        "all logits; auto: device, where that is a GPU",
        check=one_of("auto", "device", "processor"),
    )
    split_mode: str = setting(
        "layer", "how several GPUs share a model: none, layer, row, tensor", check=one_of(*SPLIT_MODES)
    )
    tensor_split: str = setting(
        "",
        "comma-separated parts of the model for each GPU, as 3,1; empty: by their free memory",
        check=Check(_are_parts, "must be numbers of at least 0, separated by commas"),
    )
    main_gpu: int = setting(0, "the GPU that has the model with split_mode none", check=between(0, 63))
    flash_attn: str = setting(
        "auto", "flash attention: on, off, or auto: where libllama can", check=one_of("on", "off", "auto")
    )
    mmap: bool = setting(True, "0: weights are read into memory instead of being mapped from the file")
    mlock: bool = setting(False, "1: weights are kept from being swapped out")
    numa: str = setting(
        "",
        "distribute, isolate, numactl: how threads and memory lie on the nodes of a NUMA machine",
        check=one_of(*NUMA),
    )
    cache_type_k: str = setting(
        DEFAULT_CACHE_TYPE, f"type of the cached keys: {', '.join(CACHE_TYPES)}", check=one_of(*CACHE_TYPES)
    )
    cache_type_v: str = setting(
        DEFAULT_CACHE_TYPE,
        "type of the cached values, the same ones; quantised ones need flash attention",
        check=one_of(*CACHE_TYPES),
    )
    rope_scaling: str = setting(
        "",
        "none, linear, yarn: how positions are scaled for a longer context; empty: the model's",
        check=one_of(*ROPE_SCALINGS),
    )
    rope_freq_base: float = setting(0.0, "base frequency of the positions; 0: the model's", check=at_least(0))
    rope_freq_scale: float = setting(
        0.0,
        "factor of the positions' frequencies, 0.25 for four times the context; 0: the model's",
        check=between(0, 1000),
    )
    yarn_ext_factor: float = setting(
        -1.0, "yarn's mix of extrapolation; -1: the model's", check=or_else(-1, at_least(0))
    )
    yarn_attn_factor: float = setting(
        -1.0, "yarn's factor of attention; -1: the model's", check=or_else(-1, at_least(0))
    )
    yarn_beta_fast: float = setting(-1.0, "yarn's low correction; -1: the model's", check=or_else(-1, at_least(0)))
    yarn_beta_slow: float = setting(-1.0, "yarn's high correction; -1: the model's", check=or_else(-1, at_least(0)))
    yarn_orig_ctx: int = setting(
        0, "context that the model was trained for, for yarn; 0: as the file says", check=between(0, MAX_INT32)
    )

    @property
    def stretches_context(self) -> bool:
        """Returns whether positions are scaled, so that a context may be longer than the model was trained for."""
        return self.rope_scaling not in ("", "none") or self.rope_freq_base > 0 or self.rope_freq_scale > 0

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices to use; none for all."""
        return sources.split_words(self.device)

    @property
    def names_gpu(self) -> str:
        """The first setting that makes sense with a GPU alone; empty if there is none."""
        wants_layers = self.gpu_layers not in ("auto", "all", "0")
        given = {
            "gpu_layers": wants_layers,
            "tensor_split": bool(self.tensor_split),
            "main_gpu": self.main_gpu > 0,
            "split_mode": self.split_mode in ("row", "tensor"),
        }
        return next((name for name, is_given in given.items() if is_given), "")

    def check_together(self, deterministic: bool) -> None:
        """Raises SettingsError for settings that contradict each other."""
        if self.cache_type_v not in PLAIN_CACHE_TYPES and self.flash_attn == "off":
            words = f"must be {', '.join(PLAIN_CACHE_TYPES)} where COROSRV_FLASH_ATTN is off"
            raise sources.bad_value("cache_type_v", words, repr(self.cache_type_v))
        for name in ("cache_type_k", "cache_type_v"):
            if deterministic and getattr(self, name) not in (DEFAULT_CACHE_TYPE, "bf16"):
                words = "must be bf16 where COROSRV_DETERMINISTIC is 1"
                raise sources.bad_value(name, words, repr(getattr(self, name)))


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
