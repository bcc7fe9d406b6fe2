"""Writes a decoder of a billion random weights in the blocks of Q4_K_M, piece by piece."""

import math
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gguf import BlockTensor, Shape, byte_tokenizer, write_blocks

_F32, _Q4_K, _Q6_K = 0, 12, 14  # ggml's types
_BLOCK = 256  # weights
_Q4_K_BYTES, _Q6_K_BYTES = 144, 210  # of a block
_MOSTLY_Q4_K_M = 15
_PIECE = 8192  # blocks that are made at once
_WORD = 1  # the type of a token that is plain text


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The shape of a llama; the default has 1.1 billion weights, and keeps 22.5 kB of each token.

    With `experts`, each layer has so many feed-forward networks of `inner` numbers, and a token goes to `used` of them.
    """

    width: int = 2048
    inner: int = 5632
    layers: int = 22
    heads: int = 32
    kv_heads: int = 4
    words: int = 32_000
    context: int = 32_768
    experts: int = 0
    used: int = 0

    @property
    def matrices(self) -> dict[str, tuple[int, Shape]]:
        """The types and shapes of all matrices: as libllama mixes them for Q4_K_M, some have six bits."""
        kv_width = self.width * self.kv_heads // self.heads
        matrices: dict[str, tuple[int, Shape]] = {
            "token_embd": (_Q4_K, (self.width, self.words)),
            "output": (_Q6_K, (self.width, self.words)),
        }
        for layer in range(self.layers):
            fine = _Q6_K if layer % 2 == 0 else _Q4_K
            block = f"blk.{layer}."
            matrices |= {
                block + "attn_q": (_Q4_K, (self.width, self.width)),
                block + "attn_k": (_Q4_K, (self.width, kv_width)),
                block + "attn_v": (fine, (self.width, kv_width)),
                block + "attn_output": (_Q4_K, (self.width, self.width)),
            }
            if self.experts:
                matrices |= {
                    block + "ffn_gate_inp": (_F32, (self.width, self.experts)),
                    block + "ffn_gate_exps": (_Q4_K, (self.width, self.inner, self.experts)),
                    block + "ffn_up_exps": (_Q4_K, (self.width, self.inner, self.experts)),
                    block + "ffn_down_exps": (fine, (self.inner, self.width, self.experts)),
                }
            else:
                matrices |= {
                    block + "ffn_gate": (_Q4_K, (self.width, self.inner)),
                    block + "ffn_up": (_Q4_K, (self.width, self.inner)),
                    block + "ffn_down": (fine, (self.inner, self.width)),
                }
        return matrices

    @property
    def norms(self) -> list[str]:
        """The names of the norms."""
        layers = range(self.layers)
        return ["output_norm", *(f"blk.{layer}.{name}" for layer in layers for name in ("attn_norm", "ffn_norm"))]

    @property
    def n_weights(self) -> int:
        return sum(math.prod(shape) for _, shape in self.matrices.values()) + len(self.norms) * self.width


# Of its 0.91 billion weights, a token uses 0.18.
MIXTURE = DecoderShape(width=1024, inner=512, layers=16, heads=16, experts=32, used=4)


def write_random_model(path: Path, shape: DecoderShape | None = None) -> Path:
    """Writes the model; its texts are random words."""
    shape = shape or DecoderShape()
    tensors = {f"{name}.weight": _random_tensor(*matrix) for name, matrix in shape.matrices.items()}
    ones = struct.pack(f"<{shape.width}f", *(1.0 for _ in range(shape.width)))
    norm = BlockTensor(_F32, (shape.width,), len(ones), lambda: iter([ones]))
    tensors |= {f"{name}.weight": norm for name in shape.norms}
    return write_blocks(path, _metadata(shape), tensors)


def _metadata(shape: DecoderShape) -> dict[str, Any]:
    tokenizer = byte_tokenizer()
    tokens, scores = tokenizer["tokenizer.ggml.tokens"], tokenizer["tokenizer.ggml.scores"]
    words = [f"\u2581w{number}" for number in range(shape.words - len(tokens))]
    experts = {"llama.expert_count": shape.experts, "llama.expert_used_count": shape.used} if shape.experts else {}
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "general.file_type": _MOSTLY_Q4_K_M,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.width // shape.heads,
        **experts,
        **tokenizer,
        "tokenizer.ggml.tokens": tokens + words,
        "tokenizer.ggml.scores": scores + [-1.0 - number for number in range(len(words))],
        "tokenizer.ggml.token_type": tokenizer["tokenizer.ggml.token_type"] + [_WORD for _ in words],
    }


def _random_tensor(kind: int, shape: Shape) -> BlockTensor:
    n_weights = math.prod(shape)
    spread = shape[0] ** -0.5  # keeps a signal's size
    if kind == _F32:
        numbers = struct.pack(f"<{n_weights}f", *(random.gauss(0, spread) for _ in range(n_weights)))
        return BlockTensor(kind, shape, len(numbers), lambda: iter([numbers]))
    n_blocks = n_weights // _BLOCK
    if kind == _Q4_K:
        # Two halves, the factors of scales and minima, then scales and numbers, any of which may be random.
        marks = {0: struct.pack("<ee", spread / 255, 7.5 * spread / 255)}
        return BlockTensor(kind, shape, n_blocks * _Q4_K_BYTES, lambda: _blocks(n_blocks, _Q4_K_BYTES, marks))
    marks = {_Q6_K_BYTES - 2: struct.pack("<e", spread / 1369)}
    return BlockTensor(kind, shape, n_blocks * _Q6_K_BYTES, lambda: _blocks(n_blocks, _Q6_K_BYTES, marks))


def _blocks(n_blocks: int, size: int, marks: dict[int, bytes]) -> Iterator[bytes]:
    """Yields random blocks that have the same bytes at some offsets."""
    for first in range(0, n_blocks, _PIECE):
        count = min(_PIECE, n_blocks - first)
        piece = bytearray(os.urandom(count * size))
        for offset, mark in marks.items():
            for i, byte in enumerate(mark):
                piece[offset + i :: size] = bytes([byte]) * count
        yield bytes(piece)
