"""Reads the head of a GGUF file without libllama: the few facts that tell how much memory the model takes, and texts.

`cache_shape` says what each layer keeps of the tokens before, by the keys of the file.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from corosrv.models.fitting.room import CacheShape, LayerCache

# Architectures that keep nothing between steps: each sequence is computed in one piece.
_WITHOUT_MEMORY = frozenset({
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
    "wavtokenizer-dec", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1",
})  # fmt: skip
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_BOTH = frozenset(["falcon-h1"])  # each layer attends and has a state
# Where one layer of so many attends to all tokens unless the file says which, the others being recurrent.
_FULL_EVERY = frozenset(["qwen3next", "qwen35", "qwen35moe", "qwen4exp", "minimax-01"])
# Where layers without heads of keys and values are recurrent.
_HEADLESS_RECURS = frozenset({
    "jamba", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "kimi-linear",
    "bailingmoe3", "kimi-k3", "glm5-next",
})  # fmt: skip
_FIRST_WITHOUT_CACHE = {"gemma3n": 20}  # from this layer on, layers use the cache of others


_MAX_LAYERS = 65_536


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """The keys of one architecture in a file."""

    architecture: str
    pairs: Mapping[str, Any]

    def number(self, name: str, default: int = 0) -> int:
        """Returns a number; the default where there is none, or a list."""
        value = self.pairs.get(f"{self.architecture}.{name}", default)
        return value if isinstance(value, int) else default

    def numbers(self, name: str, count: int, default: int) -> list[int]:
        """Returns a number for each of `count` layers; the same for all where the file has one."""
        value = self.pairs.get(f"{self.architecture}.{name}", default)
        if isinstance(value, list):
            members = [member if isinstance(member, int) else 0 for member in value[:count]]
            return members + [0] * (count - len(members))
        return [value if isinstance(value, int) else default] * count

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.pairs

    def members(self, name: str) -> list[Any] | None:
        """Returns a list; None where the file has none."""
        value = self.pairs.get(f"{self.architecture}.{name}")
        return value if isinstance(value, list) else None

    @property
    def n_layers(self) -> int:
        return min(self.number("block_count"), _MAX_LAYERS)


def cache_shape(keys: ModelKeys) -> CacheShape:
    """Returns what each layer keeps; rather too much than too little for an architecture that is not known."""
    if keys.architecture in _WITHOUT_MEMORY:
        return CacheShape()
    n_layers = keys.n_layers
    heads = keys.numbers("attention.head_count", n_layers, 1)
    kv_heads = keys.numbers("attention.head_count_kv", n_layers, 0) if keys.has("attention.head_count_kv") else heads
    recurs, attends = _recurrent(keys, kv_heads), _attending(keys, kv_heads)
    n_heads = heads[0] if heads else 0
    widths = {False: _head_widths(keys, n_heads), True: _head_widths(keys, n_heads, "_swa")}
    state = _state(keys, n_heads)
    layers = []
    for recurring, attending, has_window, n_kv_heads in zip(recurs, attends, _windowed(keys), kv_heads, strict=True):
        key_width, value_width = widths[has_window] if attending else (0, 0)
        layers.append(LayerCache(n_kv_heads * key_width, n_kv_heads * value_width, state if recurring else 0))
    return CacheShape(tuple(layers))


def _head_widths(keys: ModelKeys, n_heads: int, suffix: str = "") -> tuple[int, int]:
    """Returns the numbers of a head's key and value; `suffix`: of the keys for layers with a window."""
    default = keys.number("embedding_length") // n_heads if n_heads > 0 else 0
    key, value = (keys.number(f"attention.{name}_length", default) if n_heads else 0 for name in ("key", "value"))
    if keys.number("attention.key_length_mla") and keys.number("attention.value_length_mla"):
        value = 0  # the latent vector that is kept as the key has the value in it
    if suffix:
        key = keys.number(f"attention.key_length{suffix}", key)
        value = keys.number(f"attention.value_length{suffix}", value)
    return key, value


def _recurrent(keys: ModelKeys, kv_heads: Sequence[int]) -> list[bool]:
    """Returns for each layer whether it has a recurrent state."""
    name = keys.architecture
    if name in _RECURRENT or name in _BOTH:
        return [True] * len(kv_heads)
    if name in _FULL_EVERY:
        listed = keys.members("attention.recurrent_layers")
        if listed is not None:
            return _stretched([bool(member) for member in listed], len(kv_heads))
        interval = max(keys.number("full_attention_interval", 4), 1)
        return [(layer + 1) % interval != 0 for layer in range(len(kv_heads))]
    if name not in _HEADLESS_RECURS:
        return [False] * len(kv_heads)
    return [heads == 0 and not is_plain for heads, is_plain in zip(kv_heads, _feed_forward_alone(keys), strict=True)]


def _attending(keys: ModelKeys, kv_heads: Sequence[int]) -> list[bool]:
    """Returns for each layer whether it keeps keys and values of its own."""
    if keys.architecture in _RECURRENT:
        return [False] * len(kv_heads)
    n_own = len(kv_heads) - keys.number("attention.shared_kv_layers")
    n_own = min(n_own, _FIRST_WITHOUT_CACHE.get(keys.architecture, n_own))
    recurs = [False] * len(kv_heads) if keys.architecture in _BOTH else _recurrent(keys, kv_heads)
    return [
        not recurring and not is_plain and layer < n_own
        for layer, (recurring, is_plain) in enumerate(zip(recurs, _feed_forward_alone(keys), strict=True))
    ]


def _feed_forward_alone(keys: ModelKeys) -> list[bool]:
    """Returns for each layer whether it is a feed-forward layer alone, as Nemotron-H has them."""
    if not keys.architecture.startswith("nemotron_h"):
        return [False] * keys.n_layers
    return [inner > 0 for inner in keys.numbers("feed_forward_length", keys.n_layers, 0)]


def _windowed(keys: ModelKeys) -> list[bool]:
    """Returns for each layer whether it sees a window of tokens alone, where heads of such layers are others."""
    listed = keys.members("attention.sliding_window_pattern")
    if listed is not None:
        return _stretched([bool(member) for member in listed], keys.n_layers)
    every = keys.number("attention.sliding_window_pattern")
    return [bool(every) and layer % every != every - 1 for layer in range(keys.n_layers)]


def _state(keys: ModelKeys, n_heads: int) -> int:
    """Returns the numbers of one recurrent layer's state: what it convolves, and what it carries on."""
    n_embd = keys.number("embedding_length")
    if head := keys.number("wkv.head_size"):
        return keys.number("token_shift_count", 2) * n_embd + n_embd * head
    if taps := keys.number("shortconv.l_cache"):
        return n_embd * (taps - 1)
    taps = keys.number("ssm.conv_kernel")
    if head := keys.number("kda.head_dim"):
        return 3 * (taps - 1 if taps else 3) * n_heads * head + head * head * n_heads
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    return max(taps - 1, 0) * (inner + 2 * keys.number("ssm.group_count") * state) + state * inner


def _stretched(members: list[bool], count: int) -> list[bool]:
    return (members + [False] * count)[:count]


_MAX_KEY = 65_536  # bytes
_MAX_TEXT = 16_777_216
_MAX_PAIRS = 65_536
_STRING, _ARRAY = 8, 9
_BLOCK = 65_536  # bytes that are read at once
_LENGTH = struct.Struct("<Q")
_TOKENS = "tokenizer.ggml.tokens"
_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class BrokenFile(ValueError):
    """The file is no GGUF, or ends too early. A signal within this module: such a file has no facts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from the head of a model file."""

    architecture: str
    n_ctx_train: int
    n_embd: int
    n_inner: int  # numbers in the widest feed-forward layer of one token
    n_vocab: int
    n_layers: int
    cache: CacheShape
    size: int  # of all files of the model, in bytes


def read(path: str) -> Facts | None:
    """Reads the facts of a model file; None if there is no such file, or it is not a GGUF."""
    try:
        # A fifo or a device would make us wait.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _facts(_pairs(file), size(path))
    except (OSError, ValueError, OverflowError, MemoryError):
        return None


def _pairs(file: BinaryIO) -> dict[str, Any]:
    """Returns all pairs before the vocabulary, which stands last and is long, and how many tokens that has."""
    head = GgufReader(file)
    _, n_pairs = head.begin()
    pairs: dict[str, Any] = {}
    for _ in range(min(n_pairs, _MAX_PAIRS)):
        key = head.text(_MAX_KEY)
        if key == _TOKENS:
            pairs[_TOKENS] = head.count()
            break
        pairs[key] = head.value(*head.unpack("I"))
    return pairs


class GgufReader:
    """Reads a file from a place on, a block at a time, and passes quickly over what nobody wants."""

    def __init__(self, file: BinaryIO, place: int = 0) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._data = b""  # of the file, from `_begin` on
        self._begin = place
        self._at = 0  # of the data

    @property
    def place(self) -> int:
        """The place in the file that is read next."""
        return self._begin + self._at

    def begin(self) -> tuple[int, int]:
        """Returns how many tensors and pairs the file has. Raises BrokenFile, as all methods do."""
        if self.take(4) != b"GGUF":
            raise BrokenFile("no GGUF")
        _, n_tensors, n_pairs = self.unpack("IQQ")
        return n_tensors, n_pairs

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            self._read_on(size)
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise BrokenFile("the file ends within its head")
        self._at += size
        return taken

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def count(self) -> int:
        """Returns the members of a list, without reading them; 0 for what is none."""
        try:
            kind, _, n_items = self.unpack("IIQ")
        except BrokenFile:
            return 0
        return n_items if kind == _ARRAY else 0

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text(_MAX_TEXT)
        if kind == _ARRAY:
            item, n_items = self.unpack("IQ")
            if n_items > _MAX_LAYERS or item == _ARRAY:
                raise BrokenFile("an array that is no list of layers")
            return [self.value(item) for _ in range(n_items)]
        if kind not in _NUMBERS:
            raise BrokenFile(f"a value of the unknown kind {kind}")
        return self.unpack(_NUMBERS[kind])[0]

    def text(self, limit: int) -> str:
        (size,) = self.unpack("Q")
        if size > limit:
            raise BrokenFile(f"a text of {size} bytes")
        return self.take(size).decode("utf-8", "replace")

    def skip(self, size: int) -> None:
        self._at += size

    def skip_value(self, kind: int) -> None:
        kind, count = self.unpack("IQ") if kind == _ARRAY else (kind, 1)
        if kind == _STRING:
            self.skip_texts(count)
        elif kind in _NUMBERS:
            self.skip(count * struct.calcsize("<" + _NUMBERS[kind]))
        else:
            raise BrokenFile(f"a value of the unknown kind {kind}")

    def skip_texts(self, count: int) -> None:
        """Skips texts, of which a vocabulary has hundreds of thousands."""
        while count:
            data, at, last = self._data, self._at, len(self._data) - _LENGTH.size
            while count and at <= last:
                at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
                count -= 1
            self._at = at
            if count:
                self._read_on(_LENGTH.size)

    def _read_on(self, size: int) -> None:
        """Reads a block, or `size` bytes, from the place where the reading is."""
        if self.place + size > self._size:
            raise BrokenFile("the file ends within its head")
        self._begin, self._at = self.place, 0
        self._file.seek(self._begin)
        self._data = self._file.read(max(size, _BLOCK))


@dataclass(frozen=True, slots=True)
class HeadTexts:
    """More from the head of a model file, most of which stands behind the vocabulary; empty where the file has none."""

    chat_template: str = ""
    bos: str = ""  # the token that begins a text, as the vocabulary has it
    eos: str = ""
    pooling: int = 0  # how the vectors of a text's tokens become one; 0: the model is not one of embeddings


def read_texts(path: str) -> HeadTexts:
    """Reads the texts of a model file; none if there is no such file, or it is not a GGUF.

    Passes over each token of the vocabulary on its way, which takes some 100 ms.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return HeadTexts()
        with open(path, "rb") as file:
            return _texts(file)
    except (OSError, ValueError, OverflowError, MemoryError):
        return HeadTexts()


def _texts(file: BinaryIO) -> HeadTexts:
    head = GgufReader(file)
    _, n_pairs = head.begin()
    pairs: dict[str, Any] = {}
    tokens_at = 0
    for _ in range(min(n_pairs, _MAX_PAIRS)):
        key = head.text(_MAX_KEY)
        (kind,) = head.unpack("I")
        if key == _TOKENS:
            tokens_at = head.place
        if kind == _ARRAY:
            head.skip_value(kind)
        else:
            pairs[key] = head.value(kind)
    template = pairs.get("tokenizer.chat_template")
    bos, eos = (_token(file, tokens_at, pairs.get(f"tokenizer.ggml.{name}_token_id")) for name in ("bos", "eos"))
    pooling = pairs.get(f"{pairs.get('general.architecture')}.pooling_type")
    return HeadTexts(
        template if isinstance(template, str) else "", bos, eos, pooling if isinstance(pooling, int) else 0
    )


def _token(file: BinaryIO, tokens_at: int, id: Any) -> str:
    """Returns the text of one token of a vocabulary that stands at this place."""
    head = GgufReader(file, tokens_at)
    kind, n_tokens = head.unpack("IQ")
    if kind != _STRING or not isinstance(id, int) or not 0 <= id < n_tokens:
        return ""
    head.skip_texts(id)
    return head.text(_MAX_TEXT)


def parts(path: str) -> list[str]:
    """Returns all files that a model is split into: name-00001-of-00003.gguf and so on, those that exist; or the one
    file that it is."""
    match = _PART.fullmatch(path)
    if match is None:
        return [path]
    names = (f"{match[1]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, int(match[2]) + 1))
    return [name for name in names if os.path.isfile(name)]


def size(path: str) -> int:
    """Returns the bytes of all files of a model."""
    return sum(os.stat(part).st_size for part in parts(path))


def _facts(pairs: Mapping[str, Any], size: int) -> Facts:
    architecture = pairs.get("general.architecture")
    if not isinstance(architecture, str):
        raise BrokenFile("no architecture")
    keys = ModelKeys(architecture, pairs)
    return Facts(
        architecture=architecture,
        n_ctx_train=keys.number("context_length"),
        n_embd=keys.number("embedding_length"),
        n_inner=max(keys.numbers("feed_forward_length", keys.n_layers, 0), default=0),
        n_vocab=pairs.get(_TOKENS) or keys.number("vocab_size"),
        n_layers=keys.n_layers,
        cache=cache_shape(keys),
        size=size,
    )
