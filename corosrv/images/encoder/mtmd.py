"""Opens projector files and encodes images with libmtmd: its only user, through llama-cpp-python's declarations.

ctypes lets other threads run during each call. A file that libmtmd does not expect can end the whole process, and so
can an image: this module is for the encoder process.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import LoadError
from corosrv.images.encoder.encoding import Encoding, EncodingFailed
from corosrv.images.transfer.messages import RowSegment, Segment, TokenSegment
from corosrv.images.transfer.pool import FLOAT_BYTES
from corosrv.models.engine import libllama

libllama.provide_declarations()
from llama_cpp import llama_cpp, mtmd_cpp  # noqa: E402

_LOAD_MODE_NONE = 0
_AS_THE_FILE_SAYS = -1
_INFO = 2  # of ggml's levels of logs; from here on a line is kept
_ERROR = 4
_CONTINUED = 5
_TRIAL_SIZE = (1280, 960)  # pixels; enough for tiles, where a projector has them
MAX_SIDE = 1 << 15  # pixels; more would overflow libmtmd's ints, and no projector uses as many


class LogTail:
    """Keeps the last lines that the libraries logged, for the words of an error, and hands each on to `write`."""

    def __init__(self, write: Callable[[str], object] = lambda line: None) -> None:
        self._lines: deque[str] = deque(maxlen=8)
        self._problems: deque[str] = deque(maxlen=8)
        self._write = write
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._take)  # libraries keep the pointer, so this must live

    def attach(self) -> None:
        """Takes the logs of libllama and libmtmd from now on, in this process."""
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))
        mtmd_cpp.mtmd_log_set(self._callback, ctypes.c_void_p(0))
        mtmd_cpp.mtmd_helper_log_set(self._callback, ctypes.c_void_p(0))

    @property
    def problem(self) -> str:
        """The last errors that were logged, or else the last lines."""
        return "; ".join(self._problems or self._lines)

    def forget(self) -> None:
        """Drops the kept lines: what comes next has problems of its own."""
        self._lines.clear()
        self._problems.clear()

    def _take(self, level: int, text: bytes, _: Any) -> None:
        self._level = self._level if level == _CONTINUED else level
        line = " ".join(text.decode("utf-8", "replace").split())
        if self._level < _INFO or not line:
            return
        self._lines.append(line)
        if self._level >= _ERROR:
            self._problems.append(line)
        self._write(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorOptions:
    """Says which files an encoder opens, and how."""

    model: str
    mmproj: str
    n_threads: int = 4
    image_min_tokens: int = 0  # rows of an image, where its size decides; 0: as the projector file says
    image_max_tokens: int = 0
    on_gpu: bool = True  # if there is one
    supports: Collection[str] = ()  # what the decode loop does for rows, see corosrv.images.transfer.messages


class Projector:
    """Owns an opened projector file, and the text model that it was made for without that model's weights.

    One thread at a time may call it.
    """

    def __init__(self, options: ProjectorOptions, log: LogTail) -> None:
        """Opens both files. `log` is attached. Takes seconds for large files.

        Raises LoadError in words where a file cannot be used, as for a projector of another width than the model's.
        """
        self._log = log
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._model = self._open_model(options.model)
            self.n_embd: int = llama_cpp.llama_model_n_embd_inp(self._model)
            self._context = self._open_projector(options)
            self._check_tokens(options.mmproj)
            on_failure.pop_all()
        self.has_attention: bool = not llama_cpp.llama_model_is_recurrent(self._model)
        self.is_mrope: bool = mtmd_cpp.mtmd_decode_use_mrope(self._context)
        self.is_non_causal: bool = mtmd_cpp.mtmd_decode_use_non_causal(self._context, None)

    def _open_model(self, path: str) -> Any:
        self._log.forget()
        parameters = llama_cpp.llama_model_default_params()
        parameters.no_alloc = True  # with vocab_only the width would be 0, and libmtmd would not compare it
        parameters.load_mode = _LOAD_MODE_NONE
        model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        if not model:
            raise LoadError(f"the model {path} cannot be opened: {self._log.problem}")
        self._closing.callback(llama_cpp.llama_model_free, model)
        return model

    def _open_projector(self, options: ProjectorOptions) -> Any:
        self._log.forget()
        path = options.mmproj
        parameters = mtmd_cpp.mtmd_context_params_default()
        parameters.print_timings = False
        parameters.warmup = False
        parameters.use_gpu = options.on_gpu
        parameters.n_threads = options.n_threads
        parameters.image_min_tokens = options.image_min_tokens or _AS_THE_FILE_SAYS
        parameters.image_max_tokens = options.image_max_tokens or _AS_THE_FILE_SAYS
        context = mtmd_cpp.mtmd_init_from_file(path.encode(), self._model, parameters)
        if not context:
            raise LoadError(f"the projector {path} cannot be used with this model: {self._log.problem}")
        self._closing.callback(mtmd_cpp.mtmd_free, context)
        if not mtmd_cpp.mtmd_support_vision(context):
            raise LoadError(f"the projector {path} takes no images")
        return context

    def _check_tokens(self, path: str) -> None:
        """Raises LoadError for a projector of another family, whose tokens around tiles the model does not have."""
        width, height = _TRIAL_SIZE
        try:
            with self._chunks(width, height, memoryview(bytes(3 * width * height))) as chunks:
                for chunk in filter(_is_text, chunks):
                    _token_ids(chunk)
        except EncodingFailed as error:
            raise LoadError(f"the projector {path} cannot be used with this model: {error}") from error

    def encode(self, width: int, height: int, pixels: memoryview) -> Encoding:
        """Returns the segments and rows of an image of RGB bytes. Takes as long as the model does.

        Raises EncodingFailed.
        """
        self._check_size(width, height)
        if pixels.nbytes != 3 * width * height:
            raise EncodingFailed("bad_image", f"{pixels.nbytes} bytes are no image of {width} x {height} pixels")
        self._log.forget()
        with self._chunks(width, height, pixels) as chunks:
            rows = bytearray()
            segments = tuple(self._encode_chunk(chunk, rows) for chunk in chunks)
        if not rows:
            raise EncodingFailed("no_rows", "libmtmd made no rows of the image")
        return Encoding(segments, memoryview(rows).toreadonly(), self.n_embd)

    def measure(self, width: int, height: int) -> int:
        """Returns how many tokens an image of this size becomes, by cutting an empty one. Raises EncodingFailed."""
        self._check_size(width, height)
        with self._chunks(width, height, memoryview(bytes(3 * width * height))) as chunks:
            return sum(mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk) for chunk in chunks)

    def _check_size(self, width: int, height: int) -> None:
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
            raise EncodingFailed("bad_image", f"no image has {width} x {height} pixels")

    @contextlib.contextmanager
    def _chunks(self, width: int, height: int, pixels: memoryview) -> Iterator[list[Any]]:
        """Yields what libmtmd cuts an image into: text around and between parts of it."""
        with contextlib.ExitStack() as closing:
            source = (ctypes.c_uint8 * pixels.nbytes).from_buffer_copy(pixels)
            bitmap = mtmd_cpp.mtmd_bitmap_init(width, height, source)
            closing.callback(mtmd_cpp.mtmd_bitmap_free, bitmap)
            chunks = mtmd_cpp.mtmd_input_chunks_init()
            assert chunks  # it fails by std::bad_alloc alone, which ends the process, as the one before does
            closing.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
            part = mtmd_cpp.mtmd_input_part(None, bitmap)
            parts = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * 1)(ctypes.pointer(part))
            code = mtmd_cpp.mtmd_tokenize_from_parts(self._context, chunks, parts, 1, False)
            if code:
                raise EncodingFailed("tokenize", f"libmtmd cannot cut the image (code {code}): {self._log.problem}")
            n_chunks = mtmd_cpp.mtmd_input_chunks_size(chunks)
            yield [mtmd_cpp.mtmd_input_chunks_get(chunks, index) for index in range(n_chunks)]

    def _encode_chunk(self, chunk: Any, rows: bytearray) -> Segment:
        """Returns the segment of a chunk, and adds its rows."""
        if _is_text(chunk):
            return TokenSegment(_token_ids(chunk))
        code = mtmd_cpp.mtmd_encode_chunk(self._context, chunk)
        if code:
            raise EncodingFailed("encode", f"libmtmd cannot encode the image (code {code}): {self._log.problem}")
        n = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
        rows += ctypes.string_at(mtmd_cpp.mtmd_get_output_embd(self._context), n * self.n_embd * FLOAT_BYTES)
        return RowSegment(
            n,
            is_non_causal=mtmd_cpp.mtmd_decode_use_non_causal(self._context, chunk),
            is_mrope=self.is_mrope,
            n_positions=mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk),
            positions=self._positions(chunk, n) if self.is_mrope else (),
        )

    def _positions(self, chunk: Any, n: int) -> tuple[tuple[int, int, int, int], ...]:
        """Returns the positions of rows. Raises EncodingFailed where some do not count from the image's first."""
        image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
        positions = tuple(_position(image, 0, index) for index in range(n))
        for index, (t, y, x, z) in enumerate(positions):
            if _position(image, 1, index) != (t + 1, y + 1, x + 1, z):
                raise EncodingFailed(
                    "positions", "rows of this projector have positions that depend on the text before"
                )
        return positions

    def close(self) -> None:
        """Closes both files. Later calls do nothing."""
        self._closing.close()


def _position(image: Any, first: int, index: int) -> tuple[int, int, int, int]:
    """Returns a row's position in libllama's order, in an image that begins at position `first`."""
    place = mtmd_cpp.mtmd_image_tokens_get_decoder_pos(image, first, index)
    return place.t, place.y, place.x, place.z


def _is_text(chunk: Any) -> bool:
    return bool(mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT)


def _token_ids(chunk: Any) -> tuple[int, ...]:
    """Returns the tokens of a chunk of text. Raises EncodingFailed for one that libmtmd did not find in the model."""
    n_tokens = ctypes.c_size_t()
    tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n_tokens))
    ids = tuple(tokens[index] for index in range(n_tokens.value)) if tokens else ()
    if any(token < 0 for token in ids):
        raise EncodingFailed("no_token", "the model's vocabulary lacks a token that this projector puts around images")
    return ids
