"""Computes the bytes of a model's memory of earlier tokens, as libllama allocates it."""

from __future__ import annotations

from dataclasses import dataclass

PAD = 256  # tokens: libllama rounds the context of a slot up to this
_STATE_BYTES = 4  # a recurrent state is kept in 32 bits

# Bytes of a block of numbers, and how many numbers it has; by the names of settings.
_BLOCKS = {
    "f32": (4, 1), "f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32), "q4_1": (20, 32),
    "iq4_nl": (18, 32), "q5_0": (22, 32), "q5_1": (24, 32),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The numbers that one layer keeps of each token, and of each sequence.

    A layer that sees a window of tokens alone keeps all of them here: libllama is asked to, so that a sequence can be
    cut at any token.
    """

    key_width: int = 0
    value_width: int = 0
    state: int = 0  # of a recurrent layer, whatever the length of its sequence


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The types of cached keys and values, by the names of settings."""

    key: str = "f16"
    value: str = "f16"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The memory of a model, layer by layer."""

    layers: tuple[LayerCache, ...] = ()

    def bytes(self, slots: int, context: int, types: CacheTypes, is_shared: bool = False) -> int:
        """Returns the bytes that `slots` sequences of `context` tokens take; `is_shared`: all tokens lie together."""
        cells = padded(slots * context) if is_shared else slots * padded(context)
        return cells * self.token_bytes(types) + slots * self.state_bytes

    def token_bytes(self, types: CacheTypes) -> int:
        """Returns the bytes that each token takes."""
        return sum(_row_bytes(it.key_width, types.key) + _row_bytes(it.value_width, types.value) for it in self.layers)

    @property
    def state_bytes(self) -> int:
        """The bytes that each sequence takes, whatever its length."""
        return _STATE_BYTES * sum(layer.state for layer in self.layers)


def padded(context: int) -> int:
    """Returns the tokens that a cache of so many really has room for."""
    return -(-context // PAD) * PAD


def _row_bytes(width: int, kind: str) -> int:
    size, numbers = _BLOCKS[kind]
    return -(-width // numbers) * size
