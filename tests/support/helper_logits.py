"""`python -m tests.support.helper_logits`: logits after an image, by libmtmd's own helper and by rows from elsewhere.

Reads JSON: paths of a model and a projector, the image, the texts around it, `more` images with a text behind each
(the helper's alone), and the segments with their rows. Prints both rows of logits, as hexadecimal bytes. It runs in a
process of its own, for libmtmd may end it.
"""

import contextlib
import ctypes
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from llama_cpp import llama_cpp, mtmd_cpp

N_CTX = 1024


def main() -> None:
    case = json.load(sys.stdin)
    llama_cpp.llama_log_set(_silence, ctypes.c_void_p(0))
    mtmd_cpp.mtmd_log_set(_silence, ctypes.c_void_p(0))
    parameters = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(case["model"].encode(), parameters)
    print(json.dumps({"helper": logits(model, case, by_helper), "rows": logits(model, case, by_rows)}))


def logits(model: Any, case: dict[str, Any], evaluate: Callable[[Any, Any, dict[str, Any]], None]) -> str:
    """The logits of the last token in a context of its own."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = N_CTX
    parameters.n_threads = parameters.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, parameters)
    evaluate(context, model, case)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    data = ctypes.string_at(llama_cpp.llama_get_logits_ith(context, -1), 4 * n_vocab)
    llama_cpp.llama_free(context)
    return data.hex()


def by_helper(context: Any, model: Any, case: dict[str, Any]) -> None:
    with contextlib.ExitStack() as closing:
        parameters = mtmd_cpp.mtmd_context_params_default()
        parameters.warmup, parameters.print_timings, parameters.n_threads = False, False, 1
        projector = mtmd_cpp.mtmd_init_from_file(case["mmproj"].encode(), model, parameters)
        closing.callback(mtmd_cpp.mtmd_free, projector)
        pictures = [case, *case.get("more", [])]
        made = [closing.enter_context(bitmap_of(picture)) for picture in pictures]
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        closing.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
        marker = mtmd_cpp.mtmd_default_marker().decode()
        words = (case["before"] + "".join(marker + picture["after"] for picture in pictures)).encode()
        text = mtmd_cpp.mtmd_input_text(words, len(words), True, True)
        bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * len(made))(*made)
        assert mtmd_cpp.mtmd_tokenize(projector, chunks, ctypes.byref(text), bitmaps, len(made)) == 0
        end = llama_cpp.llama_pos()
        code = mtmd_cpp.mtmd_helper_eval_chunks(projector, context, chunks, 0, 0, N_CTX, True, ctypes.byref(end))
        assert code == 0


@contextlib.contextmanager
def bitmap_of(picture: dict[str, Any]) -> Iterator[Any]:
    pixels = bytes.fromhex(picture["pixels"])
    source = (ctypes.c_uint8 * len(pixels)).from_buffer_copy(pixels)
    bitmap = mtmd_cpp.mtmd_bitmap_init(picture["width"], picture["height"], source)
    try:
        yield bitmap
    finally:
        mtmd_cpp.mtmd_bitmap_free(bitmap)


def by_rows(context: Any, model: Any, case: dict[str, Any]) -> None:
    """Decodes token batches and row batches in turn, as the segments say."""
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    segments = [
        {"ids": tokens(vocabulary, case["before"], True)},
        *case["segments"],
        {"ids": tokens(vocabulary, case["after"], False)},
    ]
    n_past = 0
    for are_ids, group in itertools.groupby(segments, key=lambda segment: "ids" in segment):
        if are_ids:  # neighbours are one batch, for a batch's size may change its numbers
            n_past += decode_tokens(context, [token for segment in group for token in segment["ids"]], n_past)
        else:
            n_past += sum(decode_rows(context, model, segment, n_past) for segment in group)


def tokens(vocabulary: Any, text: str, add_special: bool) -> list[int]:
    ids = (llama_cpp.llama_token * N_CTX)()
    data = text.encode()
    return ids[: llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, N_CTX, add_special, True)]


def decode_tokens(context: Any, ids: list[int], n_past: int) -> int:
    """Decodes tokens, and returns by how much positions move."""
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    for index, token in enumerate(ids):
        batch.token[index], batch.pos[index] = token, n_past + index
    _decode(context, batch, len(ids))
    return len(ids)


def decode_rows(context: Any, model: Any, segment: dict[str, Any], n_past: int) -> int:
    """Decodes the rows of one segment in a batch of their own, and returns by how much positions move."""
    rows, n = bytes.fromhex(segment["rows"]), segment["n"]
    n_embd, positions = llama_cpp.llama_model_n_embd_inp(model), segment["positions"]
    batch = llama_cpp.llama_batch_init(n * (4 if positions else 1), n_embd, 1)
    ctypes.memmove(batch.embd, rows, len(rows))
    for index in range(n):
        if positions:
            for section in range(4):  # a section after another
                batch.pos[section * n + index] = (
                    n_past + positions[index][section] if section < 3 else 0
                )  # z is not used
        else:
            batch.pos[index] = n_past + index
    llama_cpp.llama_set_causal_attn(context, not segment["is_non_causal"])
    _decode(context, batch, n)
    llama_cpp.llama_set_causal_attn(context, True)
    return segment["n_positions"] or n


def _decode(context: Any, batch: Any, n: int) -> None:
    batch.n_tokens = n
    for index in range(n):
        batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, index == n - 1
    assert llama_cpp.llama_decode(context, batch) == 0
    llama_cpp.llama_batch_free(batch)


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, data: Any) -> None:
    """Drops a line."""


if __name__ == "__main__":
    main()
