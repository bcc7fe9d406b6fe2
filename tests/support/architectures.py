"""Small decoders of several architectures with random weights, and the packaged model in other weight formats."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.gguf import Shape, Tensors, byte_tokenizer, random_tensors, write

LAYERS = 2
HEADS = 4
VOCABULARY = 259
CONTEXT = 768

_QUANTIZE = """
import ctypes, sys, llama_cpp
for target, format in zip(sys.argv[2::2], sys.argv[3::2]):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_" + ("ALL_" if format == "F32" else "MOSTLY_") + format)
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(sys.argv[1].encode(), target.encode(), ctypes.byref(params)):
        sys.exit("libllama cannot write " + target)
"""


def quantize(source: Path, folder: Path, formats: Sequence[str]) -> dict[str, Path]:
    """Writes a model in each of these formats, by the names that libllama gives them."""
    targets = {name: folder / f"{source.stem}-{name}.gguf" for name in formats}
    words = [word for name, target in targets.items() for word in (str(target), name)]
    # A process of its own: llama_cpp opens libllama in its own way and prints.
    subprocess.run([sys.executable, "-c", _QUANTIZE, str(source), *words], check=True, capture_output=True, timeout=300)
    return targets


def _metadata(architecture: str, width: int, **keys: Any) -> dict[str, Any]:
    common = {
        "context_length": CONTEXT,
        "embedding_length": width,
        "block_count": LAYERS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    own = {f"{architecture}.{key}": value for key, value in {**common, **keys}.items()}
    return {"general.architecture": architecture, "general.name": "random", **own, **byte_tokenizer()}


def _attention_keys(width: int, inner: int) -> dict[str, Any]:
    return {
        "feed_forward_length": inner,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS // 2,
        "rope.dimension_count": width // HEADS,
    }


def _attention(width: int) -> dict[str, Shape]:
    return {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width, width // 2),
        "attn_v": (width, width // 2),
        "attn_output": (width, width),
    }


def _feed_forward(width: int, inner: int) -> dict[str, Shape]:
    return {"ffn_norm": (width,), "ffn_gate": (width, inner), "ffn_up": (width, inner), "ffn_down": (inner, width)}


def _write(
    path: Path,
    metadata: dict[str, Any],
    width: int,
    layers: Sequence[dict[str, Shape]],
    decay: float = -1.0,
    **ends: Shape,
) -> Path:
    """Names without an ending are weights. `decay`: a factor of what a recurrent state decays by, if it is below 0."""
    shapes: dict[str, Shape] = {"token_embd.weight": (width, VOCABULARY)}
    shapes |= {f"{name}.weight": shape for name, shape in (ends or {"output_norm": (width,)}).items()}
    for number, layer in enumerate(layers):
        for name, shape in layer.items():
            is_plain = name not in ("ssm_a", "ssm_d") and "." not in name.removeprefix("shortconv.")
            shapes[f"blk.{number}.{name}{'.weight' if is_plain else ''}"] = shape
    tensors = random_tensors(shapes)
    # A recurrent state decays where these are below zero, and grows without end where they are above.
    decays: Tensors = {
        name: (shape, [decay * abs(x) for x in xs]) for name, (shape, xs) in tensors.items() if name.endswith("ssm_a")
    }
    return write(path, metadata, tensors | decays)


def write_wide_llama(path: Path) -> Path:
    """A llama whose rows have a multiple of 256 numbers, as K-quants need them."""
    width, inner = 256, 512
    layer = _attention(width) | _feed_forward(width, inner)
    return _write(path, _metadata("llama", width, **_attention_keys(width, inner)), width, [layer] * LAYERS)


def write_mixture(path: Path) -> Path:
    """A llama that sends each token to two of four experts, as Mixtral does."""
    width, inner, experts = 64, 96, 4
    keys = {**_attention_keys(width, inner), "expert_count": experts, "expert_used_count": 2}
    layer = _attention(width) | {
        "ffn_norm": (width,),
        "ffn_gate_inp": (width, experts),
        "ffn_gate_exps": (width, inner, experts),
        "ffn_up_exps": (width, inner, experts),
        "ffn_down_exps": (inner, width, experts),
    }
    return _write(path, _metadata("llama", width, **keys), width, [layer] * LAYERS)


def write_gpt_oss(path: Path) -> Path:
    """A mixture as gpt-oss: sinks beside the scores of cells, biases of experts, a window in each second layer."""
    width, inner, experts = 64, 96, 4
    keys = {
        **_attention_keys(width, inner),
        "attention.key_length": width // HEADS,
        "attention.value_length": width // HEADS,
        "attention.sliding_window": 16,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_feed_forward_length": inner,
    }
    layer = _attention(width) | {
        "attn_q.bias": (width,),
        "attn_k.bias": (width // 2,),
        "attn_v.bias": (width // 2,),
        "attn_output.bias": (width,),
        "attn_sinks": (HEADS,),
        "post_attention_norm": (width,),
        "ffn_gate_inp": (width, experts),
        "ffn_gate_inp.bias": (experts,),
        "ffn_gate_exps": (width, inner, experts),
        "ffn_gate_exps.bias": (inner, experts),
        "ffn_up_exps": (width, inner, experts),
        "ffn_up_exps.bias": (inner, experts),
        "ffn_down_exps": (inner, width, experts),
        "ffn_down_exps.bias": (width, experts),
    }
    return _write(
        path,
        _metadata("gpt-oss", width, **keys),
        width,
        [layer] * LAYERS,
        output_norm=(width,),
        output=(width, VOCABULARY),
    )


def write_gemma2(path: Path) -> Path:
    """A gemma whose attention scores are capped, and of whose layers one sees a window of 16 tokens alone."""
    width, inner = 64, 128
    keys = {
        **_attention_keys(width, inner),
        "attention.key_length": width // HEADS,
        "attention.value_length": width // HEADS,
        "attention.sliding_window": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    norms: dict[str, Shape] = {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
    layer = _attention(width) | _feed_forward(width, inner) | norms
    return _write(path, _metadata("gemma2", width, **keys), width, [layer] * LAYERS)


def write_mamba(path: Path, decay: float = -1.0) -> Path:
    """A recurrent model without attention."""
    width, state, rank, taps = 64, 16, 32, 4
    inner = 2 * width
    keys = {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": taps,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }
    layer: dict[str, Shape] = {
        "attn_norm": (width,),
        "ssm_in": (width, 2 * inner),
        "ssm_conv1d": (taps, inner),
        "ssm_conv1d.bias": (inner,),
        "ssm_x": (inner, rank + 2 * state),
        "ssm_dt": (rank, inner),
        "ssm_dt.bias": (inner,),
        "ssm_a": (state, inner),
        "ssm_d": (inner,),
        "ssm_out": (inner, width),
    }
    return _write(path, _metadata("mamba", width, **keys), width, [layer] * LAYERS, decay)


def write_lfm2(path: Path) -> Path:
    """A hybrid: one layer of short convolutions, one of attention."""
    width, inner, taps = 64, 128, 3
    keys = {
        **_attention_keys(width, inner),
        "attention.head_count_kv": [0, HEADS // 2],
        "shortconv.l_cache": taps,
        "vocab_size": VOCABULARY,
    }
    convolution: dict[str, Shape] = {
        "attn_norm": (width,),
        "shortconv.conv": (taps, width),
        "shortconv.in_proj": (width, 3 * width),
        "shortconv.out_proj": (width, width),
    }
    head_norms: dict[str, Shape] = {"attn_q_norm": (width // HEADS,), "attn_k_norm": (width // HEADS,)}
    layers = [
        convolution | _feed_forward(width, inner),
        _attention(width) | head_norms | _feed_forward(width, inner),
    ]
    return _write(path, _metadata("lfm2", width, **keys), width, layers, token_embd_norm=(width,))


ARCHITECTURES: dict[str, Callable[[Path], Path]] = {
    "llama": write_wide_llama,
    "mixture": write_mixture,
    "gpt-oss": write_gpt_oss,
    "gemma2": write_gemma2,
    "mamba": write_mamba,
    "lfm2": write_lfm2,
}
