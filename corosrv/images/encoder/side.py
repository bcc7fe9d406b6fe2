"""Decides what the encoder does for each message: the states of its transfers. Touches no socket, thread or pool.

    OPEN ──▶ ENCODING ──encoded──▶ HOLDING ──CLOSE──▶ gone
                └──────── CANCEL, failure, violation ────────┘

A transfer that is gone leaves nothing but the floor: ids increase, so an id at or below the highest one seen that is
not live is gone, and whatever comes for it is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from corosrv.base.errors import IllegalTransition
from corosrv.images.encoder.encoding import Encoding, EncodingFailed
from corosrv.images.transfer import messages

MAX_LIVE = 256  # transfers; the language side has a handful open


class EncodeState(Enum):
    """Says how far the encoder is with a transfer."""

    ENCODING = "encoding"
    HOLDING = "holding"  # its rows are here
    GONE = "gone"


NEXT: dict[EncodeState, frozenset[EncodeState]] = {
    EncodeState.ENCODING: frozenset({EncodeState.HOLDING, EncodeState.GONE}),
    EncodeState.HOLDING: frozenset({EncodeState.GONE}),
    EncodeState.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Encode:
    """Asks for the encoding of an item, to be answered by `encoded` or `failed`."""

    message: messages.OpenTransfer


@dataclass(frozen=True, slots=True)
class Write:
    """Asks for rows `offset` to `offset + n` in the blocks of a grant, then their headers. Comes before the reply."""

    grant: messages.GrantBlocks
    encoding: Encoding
    n: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Asks for a message to the language side."""

    message: messages.ToLanguage


Action = Encode | Write | Reply


class _Transfer:
    """Holds what the encoder knows of a live transfer."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.state = EncodeState.ENCODING
        self.encoding: Encoding | None = None
        self.last: messages.BlocksFilled | None = None  # the reply to the last grant
        self.n_written = 0  # rows

    @property
    def gen(self) -> int:
        """The last generation that was granted; 0 before the first."""
        return self.last.gen if self.last else 0

    def enter(self, state: EncodeState) -> None:
        """Moves on. Raises IllegalTransition."""
        if state not in NEXT[self.state]:
            raise IllegalTransition(f"transfer {self.tid}", self.state, state)
        self.state = state


class EncoderSide:
    """Owns the live transfers and their rows.

    The caller carries out the actions that it gets, in their order, before its next call.
    """

    def __init__(self, epoch: int, geometry: messages.Geometry, n_embd: int) -> None:
        self._epoch = epoch
        self._geometry = geometry
        self._n_embd = n_embd
        self._live: dict[int, _Transfer] = {}
        self._floor = 0  # the highest id seen
        self.ignored: Counter[str] = Counter()  # messages, by why: epoch, unknown, duplicate

    @property
    def n_live(self) -> int:
        return len(self._live)

    def is_live(self, tid: int) -> bool:
        """Returns whether anybody waits for this transfer."""
        return tid in self._live

    @property
    def n_rows_held(self) -> int:
        """The rows of all live transfers."""
        return sum(transfer.encoding.total for transfer in self._live.values() if transfer.encoding)

    def receive(self, message: messages.ToEncoder) -> list[Action]:
        """Returns what a message asks for; nothing for one of another epoch, or of a transfer that is gone."""
        if message.epoch != self._epoch:
            return self._ignore("epoch")
        if isinstance(message, messages.OpenTransfer):
            return self._open(message)
        transfer = self._live.get(getattr(message, "tid", 0))
        if transfer is None:
            return self._ignore("unknown")
        if isinstance(message, messages.GrantBlocks):
            return self._grant(transfer, message)
        self._end(transfer)
        if isinstance(message, messages.CancelTransfer):
            return [Reply(messages.TransferAborted(self._epoch, transfer.tid))]
        assert isinstance(message, messages.CloseTransfer)
        return []

    def encoded(self, tid: int, encoding: Encoding) -> list[Action]:
        """Returns what follows the end of an encode; nothing where the transfer was cancelled meanwhile."""
        transfer = self._live.get(tid)
        if transfer is None:
            return self._ignore("unknown")
        if encoding.n_embd != self._n_embd:
            return self._fail(transfer, "width", f"rows of {encoding.n_embd} numbers, where {self._n_embd} are needed")
        transfer.enter(EncodeState.HOLDING)
        transfer.encoding = encoding
        return [Reply(messages.TransferMeta(self._epoch, tid, encoding.total, encoding.n_embd, encoding.segments))]

    def failed(self, tid: int, error: EncodingFailed) -> list[Action]:
        """Returns what follows an encode that has failed."""
        transfer = self._live.get(tid)
        return self._ignore("unknown") if transfer is None else self._fail(transfer, error.code, str(error))

    def _open(self, message: messages.OpenTransfer) -> list[Action]:
        if message.tid <= self._floor:
            return self._ignore("duplicate")
        self._floor = message.tid
        if len(self._live) >= MAX_LIVE:
            return [
                Reply(messages.EncodeFailed(self._epoch, message.tid, "busy", f"{MAX_LIVE} transfers are open already"))
            ]
        self._live[message.tid] = _Transfer(message.tid)
        return [Encode(message)]

    def _grant(self, transfer: _Transfer, grant: messages.GrantBlocks) -> list[Action]:
        if grant.gen <= transfer.gen:  # its blocks may be somebody else's by now, so nothing is written
            self.ignored["duplicate"] += 1
            return [Reply(transfer.last)] if transfer.last and grant.gen == transfer.last.gen else []
        encoding = transfer.encoding
        if encoding is None:
            return self._fail(transfer, "protocol", "blocks were lent before the rows were described")
        if fault := self._fault_of(transfer, grant):
            return self._fail(transfer, "protocol", fault)
        n = min(encoding.total - grant.offset, grant.capacity)
        if n < 1:
            return self._fail(transfer, "protocol", f"blocks were lent where no row of {encoding.total} is left")
        transfer.last = messages.BlocksFilled(self._epoch, transfer.tid, grant.gen, grant.offset, n, encoding.total)
        transfer.n_written += n
        return [Write(grant, encoding, n), Reply(transfer.last)]

    def _fault_of(self, transfer: _Transfer, grant: messages.GrantBlocks) -> str:
        """Returns what is wrong with a new grant; empty for nothing."""
        blocks, geometry = grant.blocks, self._geometry
        if grant.gen != transfer.gen + 1:
            return f"generation {grant.gen} was granted after {transfer.gen}"
        if grant.offset != transfer.n_written:
            return f"blocks were lent for row {grant.offset}, where row {transfer.n_written} comes next"
        if not blocks or len(set(blocks)) < len(blocks) or not all(0 <= b < geometry.n_blocks for b in blocks):
            return f"the blocks lent are not distinct ones of {geometry.n_blocks}"
        if grant.capacity != len(blocks) * geometry.block_rows:
            return f"{len(blocks)} blocks were lent for {grant.capacity} rows"
        return ""

    def _fail(self, transfer: _Transfer, code: str, text: str) -> list[Action]:
        self._end(transfer)
        return [Reply(messages.EncodeFailed(self._epoch, transfer.tid, code, text))]

    def _end(self, transfer: _Transfer) -> None:
        transfer.enter(EncodeState.GONE)
        del self._live[transfer.tid]

    def _ignore(self, why: str) -> list[Action]:
        self.ignored[why] += 1
        return []
