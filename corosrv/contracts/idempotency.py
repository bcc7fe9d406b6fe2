"""Answers that are kept under an Idempotency-Key: how a key is written, who computes first, and how long it is kept.

Of several requests with one key, the first gets a claim, which ends once: with an answer to keep, or without. Each
caller has the same room, so that nobody's answers push out another's. Several servers share their records by fulfilling
`SharedRecords`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from corosrv.base.errors import Conflict, KeyReused, Refused

HEADER = "Idempotency-Key"
MAX_KEY = 255  # characters

_PLAIN = re.compile(r"[ -~]*")
# A String of the IETF's Structured Fields (RFC 8941), which its draft on this header asks for.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")


def parse_key(field: str) -> str:
    """Returns the key that a header's value holds: the value as it stands, or what is in its quotation marks.

    Raises Refused for a key that is empty, longer than MAX_KEY, not of printable ASCII, or wrongly quoted.
    """
    key = field.strip(" \t")
    if not _PLAIN.fullmatch(key):
        raise _refused("may hold printable ASCII characters only")
    if key.startswith('"'):
        if (quoted := _QUOTED.fullmatch(key)) is None:
            raise _refused("begins with a quotation mark, but is no quoted string")
        key = _ESCAPED.sub(r"\1", quoted[1])
    if not key:
        raise _refused("is empty: leave it out, or choose a key that no other request has")
    if len(key) > MAX_KEY:
        raise _refused(f"has more than {MAX_KEY} characters")
    return key


def _refused(problem: str) -> Refused:
    return Refused(f"the header {HEADER} {problem}", HEADER)


RETRY_AFTER = 1  # seconds, told while the first call still runs


class SharedClaim(Protocol):
    """The right to answer the first call under a key among all servers. It ends once. Nothing here waits."""

    def finish(self, answer: bytes) -> None:
        """Begins to store the answer; returns at once."""

    def drop(self) -> None:
        """Begins to free the key, without an answer to keep; returns at once."""

    def abandon(self) -> None:
        """Frees the key later. May be called while garbage is collected."""


class SharedRecords(Protocol):
    """Keeps the answers of keys for several servers."""

    def begin(self, caller: str, key: str, digest: bytes) -> bytes | SharedClaim | None:
        """Returns the answer that is kept, or the claim of a new call; None while records cannot be reached. Waits.

        Raises KeyReused if something else was asked under the key, and Conflict while the first call still runs.
        """


def still_running() -> Conflict:
    """Makes the error for a key whose first request is still running."""
    error = Conflict("the first request with this Idempotency-Key is still running", None, "still_running")
    error.retry_after = RETRY_AFTER
    return error


LIFETIME = 24 * 3600.0  # seconds for which an answer is kept
MAX_BYTES = 64 << 20  # of all records
RECORD_BYTES = 1024  # that a record takes besides its answer, about: they bound the number of records

Answer = TypeVar("Answer")


@dataclass(slots=True)
class KeyRecord(Generic[Answer]):
    """Remembers one call under a key. `answer` is None while it runs; `ended` is when that was over."""

    digest: bytes  # of what was asked
    n_bytes: int = 0
    answer: Answer | None = None
    ended: float = 0.0
    is_too_large: bool = False


class CallerRecords(Generic[Answer]):
    """Keeps one caller's records by their keys, within `max_bytes`: the answer that was kept first goes first.

    Calls that run count with what they have answered so far, and are never forgotten.
    """

    def __init__(self, max_bytes: int, lifetime: float) -> None:
        self._max_bytes = max_bytes
        self._lifetime = lifetime
        self._running: dict[str, KeyRecord[Answer]] = {}
        self._answered: OrderedDict[str, KeyRecord[Answer]] = OrderedDict()  # the oldest first
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._answered)

    def begin(self, key: str, digest: bytes, now: float) -> Answer | KeyClaim[Answer]:
        """Returns the answer of a call that has ended, or the claim of a new one, which has to be finished or dropped.

        Raises KeyReused if something else was asked under the key, and Conflict while the first call still runs.
        """
        while self._answered and next(iter(self._answered.values())).ended + self._lifetime <= now:
            self._forget_oldest()
        record = self._running.get(key) or self._answered.get(key)
        if record is None:
            record = self._running[key] = KeyRecord(digest)
            self.grow(record, RECORD_BYTES)
            return KeyClaim(self, key, record)
        if record.digest != digest:
            raise KeyReused
        if record.answer is None:
            raise still_running()
        return record.answer

    def grow(self, record: KeyRecord[Answer], n_bytes: int) -> bool:
        """Counts bytes of the answer of a call that runs; the oldest answers make room for them.

        Returns False if there is no room even so: the answer will not be kept, and its bytes count no more.
        """
        if record.is_too_large:
            return False
        self._count(record, n_bytes)
        while record.n_bytes <= self._max_bytes < self.n_bytes and self._answered:
            self._forget_oldest()
        if self.n_bytes > self._max_bytes:
            record.is_too_large = True
            self._count(record, -record.n_bytes)
        return not record.is_too_large

    def finish(self, key: str, record: KeyRecord[Answer], answer: Answer, now: float) -> bool:
        """Keeps the answer of a call that runs. Returns False for one that is too large, whose key is free again."""
        if record.is_too_large or self._running.get(key) is not record:
            self.drop(key, record)
            return False
        del self._running[key]
        record.answer, record.ended = answer, now
        self._answered[key] = record
        return True

    def drop(self, key: str, record: KeyRecord[Answer]) -> None:
        """Frees the key of a call that runs. Does nothing when it was finished or dropped."""
        if self._running.get(key) is record:
            del self._running[key]
            self._count(record, -record.n_bytes)

    def _count(self, record: KeyRecord[Answer], n_bytes: int) -> None:
        record.n_bytes += n_bytes
        self.n_bytes += n_bytes

    def _forget_oldest(self) -> None:
        self.n_bytes -= self._answered.popitem(last=False)[1].n_bytes


class KeyClaim(Generic[Answer]):
    """The right to answer the first call under a key. It ends once; what comes after that does nothing.

    Until then others who ask under the key are told to come back.
    """

    __slots__ = ("_key", "_record", "_records")

    def __init__(self, records: CallerRecords[Answer], key: str, record: KeyRecord[Answer]) -> None:
        self._records = records
        self._key = key
        self._record = record

    def grow(self, n_bytes: int) -> bool:
        """Counts bytes of the answer before it is finished. Returns False if it has become too large to be kept."""
        return self._records.grow(self._record, n_bytes)

    def finish(self, answer: Answer, now: float) -> bool:
        """Keeps the answer. Returns False if it is not kept: it is too large, and the key is free again."""
        return self._records.finish(self._key, self._record, answer, now)

    def drop(self) -> None:
        """Frees the key: there is no answer to be kept."""
        self._records.drop(self._key, self._record)


class KeyedRecords(Generic[Answer]):
    """Keeps the records of all callers, with equal room for each: nobody's push out another's. Belongs to one thread.

    A key means one call as long as its record is kept, in memory and in this process: no longer than `lifetime`
    seconds after its end, and less if newer ones need the room. The time is passed in, and never goes backwards.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, lifetime: float = LIFETIME, n_callers: int = 1) -> None:
        """Divides `max_bytes` by the number of callers that there may be; 0 keeps nothing."""
        self.is_on = max_bytes > 0
        self._room = max_bytes // max(n_callers, 1)
        self._lifetime = lifetime
        self._callers: dict[str, CallerRecords[Answer]] = {}

    @property
    def n_records(self) -> int:
        return sum(map(len, self._callers.values()))

    @property
    def n_bytes(self) -> int:
        """Bytes of all records, about."""
        return sum(records.n_bytes for records in self._callers.values())

    def begin(self, caller: str, key: str, digest: bytes, now: float) -> Answer | KeyClaim[Answer]:
        """Returns the answer of a caller's earlier call, or the claim of a new one; raises as CallerRecords does."""
        records = self._callers.get(caller)
        if records is None:
            records = self._callers[caller] = CallerRecords(self._room, self._lifetime)
        return records.begin(key, digest, now)
