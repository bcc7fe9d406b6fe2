"""Makes the one answer of a call over REST, when the call has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask import Response

from corosrv.base.errors import ClientGone, CorosrvError, HandlerFailed
from corosrv.contracts.jobs.infer import InferOutputs, InferReader
from corosrv.dialects.kserve import errors
from corosrv.dialects.kserve.binary_tail import LENGTH_HEADER
from corosrv.dialects.kserve.infer_answer import EncodedAnswer
from corosrv.web.http.body_reader import chosen_encoding, compress
from corosrv.web.http.client import ClientWatch
from corosrv.web.http.reply import whole_response

_BINARY = "application/octet-stream"

# Makes an answer's body of all that a call gave, of which there is at least one.
Encode = Callable[[Iterator[InferOutputs]], EncodedAnswer]


class UnaryCallAnswer:
    """Waits for a call and answers it. A client that leaves has its call cancelled."""

    __slots__ = ("_accept_encoding", "_encode", "_path", "_reader", "_watch")

    def __init__(self, environ: dict[str, Any], reader: InferReader, encode: Encode) -> None:
        self._reader = reader
        self._encode = encode
        self._path: str = environ["PATH_INFO"]
        self._accept_encoding: str = environ.get("HTTP_ACCEPT_ENCODING", "")
        self._watch = ClientWatch(environ, reader.cancel)

    def on_ready(self, listener: Callable[[], None]) -> bool:
        return self._reader.on_news(listener)

    def answer(self) -> Response:
        """Makes the answer. Waits; raises the call's error, what `encode` raises, and ClientGone."""
        try:
            encoded = self._encode(self._outputs())
        finally:
            self.close()
        return _response(encoded, self._accept_encoding)

    def _outputs(self) -> Iterator[InferOutputs]:
        has_answer = False
        while items := self._reader.take():
            for item in items:
                if isinstance(item, InferOutputs):
                    has_answer = True
                    yield item
                elif self._watch.is_gone:  # whose call was cancelled, which is no failure of its own
                    raise ClientGone("the client left before its answer was ready")
                elif item.error is not None:
                    raise item.error
        if not has_answer:
            raise HandlerFailed("the model ended without an answer")

    def answer_error(self, error: CorosrvError) -> Response:
        return errors.answer_error(error, f"POST {self._path}")

    def close(self) -> None:
        self._watch.close()
        self._reader.close()


def _response(encoded: EncodedAnswer, accept_encoding: str) -> Response:
    """Makes the answer's response, compressed if that was asked for."""
    encoding = chosen_encoding(accept_encoding)
    pieces = encoded.pieces if encoding is None else compress(encoded.pieces, encoding)
    response = whole_response(pieces, _BINARY if encoded.is_binary else "application/json")
    if encoded.is_binary:
        response.headers[LENGTH_HEADER] = str(len(encoded.pieces[0]))
    if encoding is not None:
        response.headers["Content-Encoding"] = encoding
        response.headers["Vary"] = "Accept-Encoding"
    return response
