"""Values that go into the native core and come out of it, and options as the C API takes them.

The C header says what each field means.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import asdict

from corosrv.base.errors import LibllamaError
from corosrv.contracts.jobs import InfillTokens, Rows, Sampling
from corosrv.models.engine.binding.library import INT32_BYTES, ffi, lib
from corosrv.models.engine.libllama import REBUILD


class Synthetic(msgspec.Struct, frozen=True):
    """The speeds of a synthetic model; see corosrv_synthetic in the C header."""

    tokens_per_s: float = 20.0
    prefill_tokens_per_s: float = 0.0
    length: int = 0


class GrammarLimits(msgspec.Struct, frozen=True):
    """The limits of a grammar; see corosrv_grammar_limits in the C header. 0 is corosrv's own choice."""

    bytes: int = 0
    depth: int = 0
    rules: int = 0
    repetitions: int = 0
    elements: int = 0
    token_ms: float = 0.0


class Placement(msgspec.Struct, frozen=True):
    """The place of a model's weights and cache; see corosrv_placement in the C header, whose numbers these are."""

    gpu_layers: int = -1
    devices: tuple[str, ...] = ()
    split_mode: int = 1
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    flash_attn: int = -1
    load_mode: int = -1
    numa: int = 0
    cache_type_k: int = 1
    cache_type_v: int = 1
    rope_scaling: int = -1
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: int = 0


class Options(msgspec.Struct, frozen=True):
    """The options that open an engine; see corosrv_options in the C header."""

    model: str
    synthetic: Synthetic | None
    context: int
    slots: int
    queue: int
    tasks_of_owner: int
    threads: int
    step_ms: float
    reader_bytes: int
    cache_bytes: int = 0
    row_bytes: int = 268_435_456
    kv_unified: bool = False
    deterministic: bool = False
    context_shift: bool = False
    safe_load: bool = False
    kernels: str = "auto"
    candidates: str = "auto"
    copy_bytes: int = 1 << 62
    batch: int = 512
    pooling: str = ""  # "": the model's, else mean
    adapters: tuple[str, ...] = ()  # paths of LoRA adapters
    grammars: GrammarLimits = GrammarLimits()
    queue_s: float = 0.0
    stall_s: float = 0.0
    idle_s: float = 60.0
    drafted_rows: int = 0
    draft: str = ""  # path of a GGUF; "": no model guesses
    draft_p_min: float = 0.0
    draft_context: int = 0
    placement: Placement = Placement()
    record_fd: int = 0  # of a file that recording.py has made; 0: none
    record_bytes: int = 0
    replay_fd: int = 0
    replay_until: int = 0
    replay_tells: int = 0


class ModelInfo(msgspec.Struct, frozen=True):
    """The properties of a model; see corosrv_model_info in the C header."""

    context: int
    context_train: int
    n_vocab: int
    n_embd: int
    vocab_type: int
    add_bos: int
    bos: int
    eos: int
    n_params: int
    size: int
    own_kernels: int
    picks: int
    packed_bytes: int
    ftype: str
    description: str
    chat_template: str
    generates: int
    n_vector: int
    pooling: str
    add_eos: int
    add_sep: int
    sep: int
    fim_prefix: int
    fim_suffix: int
    fim_middle: int
    fim_repository: int
    fim_file: int
    rerank_template: str
    sampling: str  # lines of KEY=VALUE
    n_adapters: int
    row_width: int
    shared_cells: int

    @property
    def infill(self) -> InfillTokens | None:
        """The tokens for infilling, or None where the model has none."""
        needed = (self.fim_prefix, self.fim_suffix, self.fim_middle)
        return None if min(needed) < 0 else InfillTokens(*needed, self.fim_repository, self.fim_file)

    @property
    def room(self) -> str:
        """Describes the context that slots have."""
        if self.shared_cells:
            return f"that share {self.shared_cells} tokens, of which one may have {self.context}"
        return f"of {self.context} tokens"

    @property
    def kernels(self) -> str:
        """Describes which kernels multiply matrices and compute attention."""
        candidates = ", candidates from the device" if self.picks else ""
        if self.own_kernels:
            return f"corosrv's kernels ({self.packed_bytes / 1e6:.0f} MB of weights repacked){candidates}"
        return f"libllama's kernels alone{candidates}"


class SlotCounters(msgspec.Struct, frozen=True):
    """The counters of a slot's current or last task; see corosrv_slot in the C header."""

    task: int
    is_busy: int
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
    generated_tokens: int
    has_new_line: int


class SlotContent(msgspec.Struct, frozen=True):
    """The content that a slot's last task left; see corosrv_slot_content in the C header."""

    tokens: bytes | memoryview  # int32
    adapter_scales: bytes | memoryview  # float32
    state: bytes | memoryview

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // INT32_BYTES


class SlotAction(Enum):
    """The action that a slot request asks for."""

    SAVE = lib.COROSRV_SLOT_SAVE
    RESTORE = lib.COROSRV_SLOT_RESTORE
    ERASE = lib.COROSRV_SLOT_ERASE


class TaskKind(Enum):
    """The result that a task has: text, a vector or a score."""

    GENERATE = lib.COROSRV_GENERATE
    EMBED = lib.COROSRV_EMBED
    RANK = lib.COROSRV_RANK


class Task(msgspec.Struct, frozen=True):
    """One generation, or one prompt to be embedded, ready for the decode loop."""

    tokens: Sequence[int]
    max_tokens: int = -1  # -1: until the context is full
    sampling: Sampling = Sampling()
    seed: int = 0
    stops: Sequence[bytes] = ()
    share_prefix: bool = True
    kind: TaskKind = TaskKind.GENERATE
    pools: bool = True  # of EMBED, as is what follows; see corosrv.contracts.jobs.EmbedJob
    normalize: int = 2
    max_ms: float = 0.0
    scores_prompt: bool = False
    owner: int = 0  # of 64 bits; prefixes are shared among tasks of the same
    adapter_scales: Sequence[float] | None = None  # of each that was loaded; None: as the engine's are set
    tells_progress: bool = False
    id: int = 0  # what slots() shows of it
    slot: int = -1  # where it has to run; -1: anywhere
    priority: int = 5  # among those of its owner: 1 is first, 9 last
    tier: int = 0  # of its owner: 0 is the best, 9 the last
    weight: float = 1.0  # of its owner: its share of the machine beside others of its tier; finite, above 0
    deadline: float = 0.0  # of time.monotonic(); 0: none
    context_shift: bool = False  # a full context drops tokens behind the first n_keep, and the answer goes on
    n_keep: int = 0  # -1: the prompt
    n_discard: int = 0  # 0: half of those behind n_keep
    prediction: Sequence[int] = ()  # tokens of the text that much of the answer is expected to be
    rows: Sequence[Rows] = ()  # for the negative ids in `tokens`, in their order
    generated: Sequence[int] = ()  # tokens that an earlier engine drew, or another task; the answer goes on behind them
    sent_bytes: int = 0  # of the text that chunks had until then; no chunk repeats them
    state: bytes = b""  # of the chunk that told of the last of `generated`; none of another task's
    tells_state: bool = False  # chunks have ids and state


POOLINGS = {
    "": lib.COROSRV_POOLING_MODEL,
    "none": lib.COROSRV_POOLING_NONE,
    "mean": lib.COROSRV_POOLING_MEAN,
    "cls": lib.COROSRV_POOLING_CLS,
    "last": lib.COROSRV_POOLING_LAST,
    "rank": lib.COROSRV_POOLING_RANK,
}
_KERNELS = {
    "auto": lib.COROSRV_KERNELS_AUTO,
    "ggml": lib.COROSRV_KERNELS_GGML,
    "avx2": lib.COROSRV_KERNELS_AVX2,
    "avx-vnni": lib.COROSRV_KERNELS_AVX_VNNI,
}
_CANDIDATES = {
    "auto": lib.COROSRV_CANDIDATES_AUTO,
    "device": lib.COROSRV_CANDIDATES_DEVICE,
    "processor": lib.COROSRV_CANDIDATES_PROCESSOR,
}


class BorrowedOptions:
    """`struct` is a corosrv_options; it, and what it points to, lives as long as this object."""

    def __init__(self, options: Options) -> None:
        self._model = ffi.new("char[]", options.model.encode())
        self._draft = ffi.new("char[]", options.draft.encode())
        self._paths = [ffi.new("char[]", path.encode()) for path in options.adapters]
        self._adapters = ffi.new("char *[]", self._paths)
        self._synthetic = ffi.NULL
        if options.synthetic is not None:
            self._synthetic = ffi.new("corosrv_synthetic *", asdict(options.synthetic))
        translated = {
            "model": self._model,
            "synthetic": self._synthetic,
            "draft": self._draft,
            "kernels": _KERNELS[options.kernels],
            "candidates": _CANDIDATES[options.candidates],
            "pooling": POOLINGS[options.pooling],
            "adapters": self._adapters,
            "n_adapters": len(self._paths),
            "grammars": asdict(options.grammars),
            "placement": self._placed(options.placement),
        }
        try:
            self.struct = ffi.new("corosrv_options *", asdict(options) | translated)
        except KeyError as error:  # sources were updated, and the extension was not
            raise LibllamaError(f"corosrv's extension is older than its Python code ({error}); {REBUILD}") from None

    def _placed(self, placement: Placement) -> Any:
        """Returns a corosrv_placement; it, and what it points to, lives as long as this object."""
        self._device_names = [ffi.new("char[]", name.encode()) for name in placement.devices]
        self._devices = ffi.new("char *[]", self._device_names)
        self._parts = ffi.new("float[]", placement.tensor_split)
        translated = {
            "devices": self._devices,
            "n_devices": len(placement.devices),
            "tensor_split": self._parts,
            "n_tensor_split": len(placement.tensor_split),
        }
        self._placement = ffi.new("corosrv_placement *", asdict(placement) | translated)
        return self._placement
