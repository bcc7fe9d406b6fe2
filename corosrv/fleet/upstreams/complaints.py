"""Judges answers of 500 that an upstream gives in good form: the request may be to blame, or the upstream."""

from __future__ import annotations

import msgspec

from corosrv.contracts.jobs.infer import AnswerHead

MAX_ERROR = 64 << 10  # bytes of an error's body
N_DIFFERENT = 5  # requests
DURATION = 10.0  # seconds

_TYPE = "application/json"


class AnsweredError:
    """Collects the body of an answer of 500, and tells whether it is an error as servers of models write theirs."""

    __slots__ = ("_body", "is_pending")

    def __init__(self, head: AnswerHead) -> None:
        kind = next((value for name, value in head.headers if name.lower() == "content-type"), "")
        self.is_pending = head.status == 500 and kind.partition(";")[0].strip().lower() == _TYPE
        self._body = b""

    def feed(self, piece: bytes) -> None:
        """Takes the next piece of the body; one over MAX_ERROR is no error's."""
        if self.is_pending:
            self._body += piece
            self.is_pending = len(self._body) <= MAX_ERROR

    @property
    def is_well_formed(self) -> bool:
        """Tells whether the whole body is an error: an object with `error`, or one that calls itself an error."""
        if not self.is_pending:
            return False
        try:
            value = msgspec.json.decode(self._body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return isinstance(value, dict) and bool(value.get("error") or value.get("object") == "error")


class Complaints:
    """Remembers the answers of 500 since an upstream has last answered anything else.

    llama-server answers 500 to some requests that are wrong themselves; so do others. One client that sends such
    requests must not take the upstream from everybody, but one that fails every request is not well either.
    """

    def __init__(self) -> None:
        self._requests: set[int] = set()  # hashes of different ones, N_DIFFERENT at most
        self._began_at = 0.0

    @property
    def n_requests(self) -> int:
        """Returns how many different requests are remembered."""
        return len(self._requests)

    def add(self, request: int, now: float) -> bool:
        """Records an answer of 500, by its request's hash, and returns whether it is to be taken as a fault.

        It is when N_DIFFERENT requests have got it in DURATION seconds or more, and none anything else.
        """
        if not self._requests:
            self._began_at = now
        if self.n_requests < N_DIFFERENT:
            self._requests.add(request)
        return self.n_requests >= N_DIFFERENT and now - self._began_at >= DURATION

    def clear(self) -> None:
        """Records that the upstream has answered something else."""
        self._requests.clear()
