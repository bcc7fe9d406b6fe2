"""`python -m tests.support.token_encoder`, with the arguments of `corosrv.encoder`: an encoder whose rows are known.

It is the server's own process, and opens the same files; but the pixels of an image name tokens, three bytes each, and
its rows are those that the model's file has for them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from corosrv.contracts.jobs import Image
from corosrv.images.encoder.__main__ import main, open_tried
from corosrv.images.encoder.encoding import Encoding, EncodingFailed
from corosrv.images.encoder.mtmd import ProjectorOptions
from corosrv.images.transfer.messages import RowSegment
from tests.support.token_table import TokenTable

MODULE = "tests.support.token_encoder"
_TOKEN_BYTES = 3


def token_image(ids: Sequence[int]) -> Image:
    """An image of one pixel for each token, whose rows are the tokens'."""
    return Image.of_pixels(len(ids), 1, b"".join(token.to_bytes(_TOKEN_BYTES, "little") for token in ids))


class TokenSource:
    """Looks up the tokens that images name. Belongs to the thread that encodes."""

    def __init__(self, options: ProjectorOptions) -> None:
        self._projector = open_tried(options)  # which is not asked: the process is to be as large as any encoder
        self._table = TokenTable(options.model)
        self.n_embd = self._table.n_embd

    def measure(self, width: int, height: int) -> int:
        return width * height

    def encode(self, width: int, height: int, pixels: memoryview) -> Encoding:
        ids = [int.from_bytes(pixels[at : at + _TOKEN_BYTES], "little") for at in range(0, len(pixels), _TOKEN_BYTES)]
        try:
            rows = self._table.rows(ids)
        except IndexError as error:
            raise EncodingFailed("bad_token", str(error)) from error
        return Encoding((RowSegment(width * height),), memoryview(rows), self.n_embd)


if __name__ == "__main__":
    main(sys.argv[1:], TokenSource)
