"""Private ids of embedding rows: equal ids stand for equal rows, so that prefixes are compared by ids alone."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict

from corosrv.base.waits import ThreadLock
from corosrv.contracts.jobs import Rows

FIRST_ID, LAST_ID = -2, -(2**31)  # -1 stands for rows without an id of their own
MAX_CONTENTS = 65_536

Key = tuple[str, int, int, bytes, str]


class RowIds:
    """Gives each content of one caller an id, which all its rows have. Any thread may call.

    The same numbers at other positions, or seen in another way, are another content.

    Keeps the ids of the contents used last; one that was forgotten gets a new id, and what was computed of it is not
    found again. No id is given twice: when none is left, rows have none, and share nothing until the model is loaded
    anew.
    """

    def __init__(self, limit: int = MAX_CONTENTS, last_id: int = LAST_ID) -> None:
        self._limit = limit
        self._last_id = last_id
        self._next = FIRST_ID
        self._lock = ThreadLock()
        self._ids: OrderedDict[Key, int] = OrderedDict()

    def of_rows(self, rows: Rows, caller: str) -> int | None:
        """Returns the id of these rows, or None where there is none left."""
        key = rows.sha256, rows.n, rows.width, _reading_of(rows), caller
        with self._lock:
            row_id = self._ids.get(key)
            if row_id is not None:
                self._ids.move_to_end(key)
                return row_id
            if self._next < self._last_id:
                return None
            row_id, self._next = self._next, self._next - 1
            self._ids[key] = row_id
            if len(self._ids) > self._limit:
                self._ids.popitem(last=False)
            return row_id


def _reading_of(rows: Rows) -> bytes:
    """Returns the hash of how rows are read; nothing for those that are read as tokens are."""
    if rows.is_read_as_tokens:
        return b""
    return hashlib.sha256(struct.pack("<?i", rows.is_non_causal, rows.n_positions) + rows.positions).digest()
