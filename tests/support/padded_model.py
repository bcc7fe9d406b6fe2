"""Writes a model that says what another one says, at several times the cost."""

import struct
from pathlib import Path
from typing import NamedTuple

_ALIGNMENT = 32
_ZERO = ("attn_output.weight", "ffn_down.weight")  # what a layer adds is nothing where these are


class _Tensor(NamedTuple):
    name: str
    kind: bytes  # its shape and type, as they stand in the file
    body: bytes


def write_padded(source: Path, target: Path, times: int) -> Path:
    """Writes a llama of blocks with so many times its layers, of which the further ones add nothing."""
    data = source.read_bytes()
    begin = data.index(_text("token_embd.weight"))  # the first tensor's head
    tensors = _read_tensors(data, begin)
    layers_at = data.index(_text("llama.block_count")) + len(_text("llama.block_count")) + 4
    (n_layers,) = struct.unpack_from("<I", data, layers_at)
    for turn in range(1, times):
        for name, kind, body in tensors[:]:
            if not name.startswith("blk.") or int(name.split(".")[1]) >= n_layers:
                continue
            _, layer, rest = name.split(".", 2)
            added = bytes(len(body)) if rest in _ZERO else body
            tensors.append(_Tensor(f"blk.{int(layer) + turn * n_layers}.{rest}", kind, added))
    head = bytearray(data[:begin])
    struct.pack_into("<I", head, layers_at, n_layers * times)
    struct.pack_into("<Q", head, 8, len(tensors))
    place = 0
    for name, kind, body in tensors:
        head += _text(name) + kind + struct.pack("<Q", place)
        place += len(body)
    with target.open("wb") as file:
        file.write(head + bytes(-len(head) % _ALIGNMENT))
        file.writelines(tensor.body for tensor in tensors)
    return target


def _read_tensors(data: bytes, at: int) -> list[_Tensor]:
    (n_tensors,) = struct.unpack_from("<Q", data, 8)
    heads: list[tuple[str, bytes, int]] = []
    for _ in range(n_tensors):
        (size,) = struct.unpack_from("<Q", data, at)
        name, at = data[at + 8 : at + 8 + size].decode(), at + 8 + size
        (n_dims,) = struct.unpack_from("<I", data, at)
        end = at + 4 + 8 * n_dims + 4
        (offset,) = struct.unpack_from("<Q", data, end)
        heads.append((name, data[at:end], offset))
        at = end + 8
    first = at + -at % _ALIGNMENT
    starts = sorted(offset for *_, offset in heads)
    ends = dict(zip(starts, [*starts[1:], len(data) - first], strict=True))
    return [_Tensor(name, kind, data[first + offset : first + ends[offset]]) for name, kind, offset in heads]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
