"""Writes small projector files with random weights: what turns a picture into rows for a language model."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import gguf

IMAGE_SIZE, PATCH_SIZE = 56, 14  # pixels
N_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
WIDTH, INNER, LAYERS, HEADS = 64, 128, 2, 2  # of the vision encoder; libmtmd leaves the last layer of an mlp type out

IDEFICS3_TOKENS = ("\n\n", "<fake_token_around_image>", "<global-img>")  # that its models have, and libmtmd looks up


def write_mlp(path: Path, n_embd: int, lacks: Sequence[str] = (), **more: Any) -> Path:
    """A projector of llava's first type: 16 rows of `n_embd` numbers for each image.

    `lacks`: tensors left out; `more`: keys of the vision encoder.
    """
    shapes: dict[str, gguf.Shape] = {
        "v.patch_embd.weight": (PATCH_SIZE, PATCH_SIZE, 3, WIDTH),
        "v.position_embd.weight": (WIDTH, N_PATCHES),
        **_layers(),
        **_linear("mm.0", WIDTH, n_embd),
        **_linear("mm.2", n_embd, n_embd),
    }
    keys = {f"clip.vision.{name}": value for name, value in more.items()}
    return gguf.write(path, _metadata("mlp", n_embd) | keys, _tensors(shapes, lacks))


def write_audio(path: Path, n_embd: int) -> Path:
    """A projector of Ultravox's type, which takes sound alone."""
    shapes: dict[str, gguf.Shape] = {
        "a.conv1d.1.weight": (3, 128, WIDTH),
        "a.conv1d.1.bias": (1, WIDTH),
        "a.conv1d.2.weight": (3, WIDTH, WIDTH),
        "a.conv1d.2.bias": (1, WIDTH),
        "a.position_embd.weight": (WIDTH, 1500),
        "a.post_ln.weight": (WIDTH,),
        "a.post_ln.bias": (WIDTH,),
        **{name.replace("v.", "a.", 1): shape for name, shape in _layers().items()},
        "mm.a.norm_pre.weight": (8 * WIDTH,),
        "mm.a.mlp.1.weight": (8 * WIDTH, 2 * WIDTH),
        "mm.a.norm_mid.weight": (WIDTH,),
        "mm.a.mlp.2.weight": (WIDTH, n_embd),
    }
    vision = _metadata("ultravox", n_embd)
    keys = {name.replace("vision", "audio"): value for name, value in vision.items() if "image" not in name}
    more = {"clip.audio.num_mel_bins": 128, "clip.audio.projector.stack_factor": 8}
    return gguf.write(path, keys | more, _tensors(shapes))


def write_idefics3(path: Path, n_embd: int) -> Path:
    """A projector of SmolVLM's type: an image over 56 pixels is cut into tiles, with text between their rows."""
    scale = 2
    shapes = {**_body(), "mm.model.fc.weight": (WIDTH * scale * scale, n_embd)}
    more = {"clip.vision.projector.scale_factor": scale, "clip.vision.preproc_image_size": 2 * IMAGE_SIZE}
    return gguf.write(path, _metadata("idefics3", n_embd) | more, _tensors(shapes))


def write_internvl(path: Path, n_embd: int, image_size: int, n_layers: int) -> Path:
    """A projector of InternVL's type, as slow as one wants: attention among all 14 x 14 pixels of a square picture.

    64 of them make a row: 896 pixels a side are 64 rows, for which 4096 places look at each other in each layer.
    """
    scale, inner = 8, 64
    merged, n_places = WIDTH * scale * scale, (image_size // PATCH_SIZE) ** 2
    shapes = {
        "v.class_embd": (WIDTH,),
        "v.patch_embd.weight": (PATCH_SIZE, PATCH_SIZE, 3, WIDTH),
        "v.patch_embd.bias": (WIDTH,),
        "v.position_embd.weight": (WIDTH, n_places + 1),
        **_layers(n_layers),
        "mm.model.mlp.0.weight": (merged,),
        "mm.model.mlp.0.bias": (merged,),
        **_linear("mm.model.mlp.1", merged, inner),
        **_linear("mm.model.mlp.3", inner, n_embd),
    }
    more = {"clip.vision.image_size": image_size, "clip.vision.block_count": n_layers}
    scaled = {"clip.vision.projector.scale_factor": scale}
    return gguf.write(path, _metadata("internvl", n_embd) | more | scaled, _tensors(shapes))


def write_gemma3(path: Path, n_embd: int) -> Path:
    """A projector of Gemma 3's type, whose rows are read without causal attention."""
    shapes = {**_body(), "mm.input_projection.weight": (n_embd, WIDTH), "mm.soft_emb_norm.weight": (WIDTH,)}
    more = {"clip.vision.projector.scale_factor": 2}
    return gguf.write(path, _metadata("gemma3", n_embd) | more, _tensors(shapes))


def write_qwen2vl(path: Path, n_embd: int) -> Path:
    """A projector of Qwen2-VL's type, for models with M-RoPE (gguf.write_qwen2vl): four patches make a row."""
    merged = 4 * WIDTH
    shapes = {**_body(), **_linear("mm.0", merged, merged), **_linear("mm.2", merged, n_embd)}
    for name in ("v.position_embd.weight", "v.patch_embd.bias"):
        del shapes[name]
    shapes["v.patch_embd.weight.1"] = shapes["v.patch_embd.weight"]  # of the second frame of a video
    return gguf.write(path, _metadata("qwen2vl_merger", n_embd), _tensors(shapes))


def random_pixels(width: int = IMAGE_SIZE, height: int = IMAGE_SIZE, seed: int = 1) -> bytes:
    """RGB, row by row."""
    return random.Random(seed).randbytes(3 * width * height)


def _metadata(kind: str, n_embd: int) -> dict[str, Any]:
    return {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        "clip.use_gelu": True,
        "clip.vision.image_size": IMAGE_SIZE,
        "clip.vision.patch_size": PATCH_SIZE,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": INNER,
        "clip.vision.block_count": LAYERS,
        "clip.vision.projection_dim": n_embd,
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }


def _body() -> dict[str, gguf.Shape]:
    """The tensors of a vision encoder that ends in a norm."""
    return {
        "v.patch_embd.weight": (PATCH_SIZE, PATCH_SIZE, 3, WIDTH),
        "v.patch_embd.bias": (WIDTH,),
        "v.position_embd.weight": (WIDTH, N_PATCHES),
        "v.post_ln.weight": (WIDTH,),
        "v.post_ln.bias": (WIDTH,),
        **_layers(),
    }


def _layers(n_layers: int = LAYERS) -> dict[str, gguf.Shape]:
    shapes: dict[str, gguf.Shape] = {}
    for layer in range(n_layers):
        prefix = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes |= _linear(f"{prefix}.{name}", WIDTH, WIDTH)
        shapes |= _linear(f"{prefix}.ffn_up", WIDTH, INNER)
        shapes |= _linear(f"{prefix}.ffn_down", INNER, WIDTH)
        for name in ("ln1", "ln2"):
            shapes |= {f"{prefix}.{name}.weight": (WIDTH,), f"{prefix}.{name}.bias": (WIDTH,)}
    return shapes


def _linear(name: str, inputs: int, outputs: int) -> dict[str, gguf.Shape]:
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def _tensors(shapes: dict[str, gguf.Shape], lacks: Sequence[str] = ()) -> dict[str, tuple[gguf.Shape, Sequence[float]]]:
    unknown = set(lacks) - set(shapes)
    assert not unknown, f"no such tensors: {unknown}"
    return gguf.random_tensors({name: shape for name, shape in shapes.items() if name not in lacks})
