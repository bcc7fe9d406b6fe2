"""Writes small GGUF files with random weights: what a test needs of a model that nobody packages."""

import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32 = 0  # ggml's type of a tensor's numbers

Shape = tuple[int, ...]  # the innermost dimension first, as ggml has it
Tensors = dict[str, tuple[Shape, Sequence[float]]]


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return _FLOAT32, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _text(value)
    if all(isinstance(item, int) for item in value):
        return _ARRAY, struct.pack(f"<IQ{len(value)}i", _INT32, len(value), *value)
    kinds, items = zip(*map(_typed, value), strict=True)
    return _ARRAY, struct.pack("<IQ", kinds[0], len(items)) + b"".join(items)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _numbers(shape: Shape) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Shape, Iterable[float]]]) -> Path:
    """A GGUF of these keys and float tensors."""
    head = _head(metadata, len(tensors))
    bodies, offset = [], 0
    for name, (shape, values) in tensors.items():
        body = _padded(struct.pack(f"<{_numbers(shape)}f", *values))
        head += _tensor_head(name, shape, _F32, offset)
        bodies.append(body)
        offset += len(body)
    path.write_bytes(_padded(head) + b"".join(bodies))
    return path


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A tensor of any type, whose bytes are made when they are written."""

    kind: int  # ggml's type
    shape: Shape
    size: int  # bytes
    pieces: Callable[[], Iterator[bytes]]


def write_blocks(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, BlockTensor]) -> Path:
    """A GGUF of these keys and tensors, of which no more than a piece is in memory."""
    head = _head(metadata, len(tensors))
    offset = 0
    for name, tensor in tensors.items():
        head += _tensor_head(name, tensor.shape, tensor.kind, offset)
        offset += tensor.size + -tensor.size % _ALIGNMENT
    with path.open("wb") as file:
        file.write(_padded(head))
        for tensor in tensors.values():
            file.writelines(tensor.pieces())
            file.write(bytes(-tensor.size % _ALIGNMENT))
    return path


def _head(metadata: Mapping[str, Any], n_tensors: int) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(metadata))
    for key, value in metadata.items():
        kind, data = _typed(value)
        head += _text(key) + struct.pack("<I", kind) + data
    return head


def _tensor_head(name: str, shape: Shape, kind: int, offset: int) -> bytes:
    extents = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + extents + struct.pack("<IQ", kind, offset)


def random_tensors(shapes: Mapping[str, Shape], seed: int = 1) -> Tensors:
    """Weights that keep a signal's size: norms near one, biases small, the rest by its width."""
    draw = random.Random(seed)
    tensors: Tensors = {}
    for name, shape in shapes.items():
        is_norm, is_bias = "norm.weight" in name, name.endswith(".bias")
        middle, spread = (1.0, 0.1) if is_norm else (0.0, 0.1 if is_bias else shape[0] ** -0.5)
        tensors[name] = (shape, [draw.gauss(middle, spread) for _ in range(_numbers(shape))])
    return tensors


def write_lora(
    path: Path, shapes: Mapping[str, tuple[int, int]], seed: int = 1, size: float = 0.3, architecture: str = "llama"
) -> Path:
    """An adapter of rank 2 for these weights, each with its inputs and outputs."""
    metadata = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": 2.0,
    }
    draw = random.Random(seed)
    tensors: Tensors = {}
    for name, (inputs, outputs) in shapes.items():
        for suffix, shape in (("lora_a", (inputs, 2)), ("lora_b", (2, outputs))):
            tensors[f"{name}.{suffix}"] = (shape, [draw.gauss(0, size) for _ in range(_numbers(shape))])
    return write(path, metadata, tensors)


def byte_tokenizer(special: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a vocabulary that reads bytes: 259 tokens, and `special` ones after them."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *special]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0 for _ in tokens],
        "tokenizer.ggml.token_type": [2, 3, 3, *(6 for _ in range(256)), *(3 for _ in special)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_llama(
    path: Path,
    context: int = 256,
    special: Sequence[str] = (),
    edit: Callable[[Tensors], None] | None = None,
    **more: Any,
) -> Path:
    """A decoder that reads bytes: two layers, 32 numbers wide, and no chat template.

    `special`: tokens besides bytes; `edit` changes the weights before they are written; `more` are keys of its own.
    """
    width, inner, layers, heads = 32, 64, 2, 2
    tokenizer = byte_tokenizer(special)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": context,
        "llama.embedding_length": width,
        "llama.block_count": layers,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": width // heads,
        **{key: value for key, value in more.items() if key not in tokenizer},
        **tokenizer,
        **more,
    }
    shapes: dict[str, Shape] = {
        name: (width, len(tokenizer["tokenizer.ggml.tokens"])) for name in ("token_embd.weight", "output.weight")
    }
    shapes["output_norm.weight"] = (width,)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (width, width)
        for name, shape in {"ffn_gate": (width, inner), "ffn_up": (width, inner), "ffn_down": (inner, width)}.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (width,)
    tensors = random_tensors(shapes)
    if edit is not None:
        edit(tensors)
    return write(path, metadata, tensors)


def write_qwen2vl(path: Path, context: int = 256) -> Path:
    """A decoder with M-RoPE that reads bytes: two layers, 32 numbers wide."""
    width, inner, layers, heads = 32, 64, 2, 2
    metadata: dict[str, Any] = {
        "general.architecture": "qwen2vl",
        "general.name": "tiny",
        "qwen2vl.context_length": context,
        "qwen2vl.embedding_length": width,
        "qwen2vl.block_count": layers,
        "qwen2vl.feed_forward_length": inner,
        "qwen2vl.attention.head_count": heads,
        "qwen2vl.attention.layer_norm_rms_epsilon": 1e-5,
        "qwen2vl.rope.dimension_sections": [2, 3, 3, 0],
        **byte_tokenizer(),
    }
    n_tokens = len(metadata["tokenizer.ggml.tokens"])
    shapes: dict[str, Shape] = {"token_embd.weight": (width, n_tokens), "output.weight": (width, n_tokens)}
    shapes["output_norm.weight"] = (width,)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v"):
            shapes |= {f"blk.{layer}.{name}.weight": (width, width), f"blk.{layer}.{name}.bias": (width,)}
        shapes[f"blk.{layer}.attn_output.weight"] = (width, width)
        for name, shape in {"ffn_gate": (width, inner), "ffn_up": (width, inner), "ffn_down": (inner, width)}.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (width,)
    return write(path, metadata, random_tensors(shapes))


WORDS = ("the", "cat", "dog", "sat", "ran", "on", "mat", "road", "a", "red", "big", "house", "river", "boat", "why")
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *("\u2581" + word for word in WORDS))


def write_bert(
    path: Path, pooling: int | None = None, has_head: bool = False, context: int = 512, rerank_template: str = ""
) -> Path:
    """An encoder that knows WORDS: two layers, 32 numbers wide. `pooling`: libllama's number of one."""
    width, inner, layers = 32, 64, 2
    metadata: dict[str, Any] = {
        "general.architecture": "bert",
        "general.name": "tiny",
        "bert.context_length": context,
        "bert.embedding_length": width,
        "bert.block_count": layers,
        "bert.feed_forward_length": inner,
        "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": _BERT_TOKENS,
        "tokenizer.ggml.token_type": [3, 2, 3, 3, 3, *(1 for _ in WORDS)],
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    if pooling is not None:
        metadata["bert.pooling_type"] = pooling
    if rerank_template:
        metadata["tokenizer.chat_template.rerank"] = rerank_template
    shapes: dict[str, Shape] = {
        "token_embd.weight": (width, len(_BERT_TOKENS)),
        "token_types.weight": (width, 2),
        "position_embd.weight": (width, context),
        "token_embd_norm.weight": (width,),
        "token_embd_norm.bias": (width,),
    }
    for layer in range(layers):
        for name, shape in {
            "attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
            "attn_output": (width, width), "ffn_up": (width, inner), "ffn_down": (inner, width),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}.weight"] = shape
            shapes[f"blk.{layer}.{name}.bias"] = shape[1:]
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = shapes[f"blk.{layer}.{name}.bias"] = (width,)
    if has_head:
        shapes |= {"cls.weight": (width, width), "cls.bias": (width,)}
        shapes |= {"cls.output.weight": (width, 1), "cls.output.bias": (1,)}
    return write(path, metadata, random_tensors(shapes))
