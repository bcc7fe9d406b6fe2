"""The contents of slots in files: read back by another engine of the real model, and refused if they are not that."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import SlotFile, Terms
from corosrv.models.engine import slots
from corosrv.models.engine.binding import SlotContent
from corosrv.models.engine.engine import Engine
from corosrv.models.engine.slots import FileOwner, SlotFileLimits
from tests.support.engines import SLOW, job, opened, packaged_model, read_all, text_of
from tests.support.waiting import wait_until

STORY = "The ship left the harbour at dawn, and nobody on board knew where the captain meant to go. " * 20
QUESTION = STORY + "The first port was"
OWNER = FileOwner(b"m" * 32, 7)
LIMITS = SlotFileLimits(tokens=8, scales=2, state_bytes=100)
CONTENT = SlotContent(struct.pack("<4i", 1, 2, 3, 4), struct.pack("<2f", 0.5, 1), bytes(range(60)))
HEADER = slots._HEADER


# The file alone.


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.slot")


def changed(path: str, at: int, to: bytes) -> None:
    """Other bytes, and a digest that goes with them."""
    whole = bytearray(Path(path).read_bytes()[:-32])
    whole[at : at + len(to)] = to
    Path(path).write_bytes(whole + slots._digest([bytes(whole)]))


def refusal(path: str, owner: FileOwner = OWNER) -> str:
    with pytest.raises(errors.Refused) as refused:
        slots.read(path, owner, LIMITS)
    assert refused.value.param == "filename"
    return str(refused.value)


def test_what_is_written_is_read_and_nothing_else_is_left_in_the_folder(path):
    n_bytes = slots.write(path, CONTENT, OWNER)

    assert slots.read(path, OWNER, LIMITS) == (CONTENT, n_bytes)
    assert n_bytes == os.path.getsize(path)
    assert os.listdir(os.path.dirname(path)) == ["a.slot"]
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_every_cut_and_every_changed_byte_is_noticed(path):
    slots.write(path, CONTENT, OWNER)
    whole = Path(path).read_bytes()

    for size in range(len(whole)):
        Path(path).write_bytes(whole[:size])
        refusal(path)
    for at in range(len(whole)):
        Path(path).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refusal(path)
    Path(path).write_bytes(whole + b"\0")
    assert "longer or shorter" in refusal(path)


@pytest.mark.parametrize(
    ("at", "to"), [(52, 2**32 - 1), (52, 9), (56, 2**32 - 1), (56, 3), (60, 2**32 - 1), (60, 101)]
)  # fmt: skip
def test_absurd_numbers_are_refused_before_anything_is_read(path, at, to):
    slots.write(path, CONTENT, OWNER)
    changed(path, at, struct.pack("<I", to))

    assert "are more than" in refusal(path)


def test_other_models_and_versions_are_refused_by_name(path):
    slots.write(path, CONTENT, OWNER)

    assert "another model" in refusal(path, FileOwner(b"n" * 32, 7))
    changed(path, 8, struct.pack("<I", 2))
    assert "version 2" in refusal(path)


def test_another_caller_s_file_is_neither_found_nor_written_over(path):
    slots.write(path, CONTENT, OWNER)
    other = FileOwner(OWNER.model, 8)

    with pytest.raises(errors.NotFound, match=r"no slot file 'a\.slot'"):
        slots.read(path, other, LIMITS)
    with pytest.raises(errors.Refused, match="taken"):
        slots.write(path, CONTENT, other)
    assert slots.read(path, OWNER, LIMITS)[0] == CONTENT


def test_links_pipes_folders_and_nothing_are_not_read(path, tmp_path):
    with pytest.raises(errors.NotFound):
        slots.read(path, OWNER, LIMITS)
    slots.write(str(tmp_path / "b"), CONTENT, OWNER)
    os.symlink(tmp_path / "b", path)
    with pytest.raises(errors.NotFound):
        slots.read(path, OWNER, LIMITS)
    os.mkfifo(tmp_path / "pipe")
    assert "no file" in refusal(str(tmp_path / "pipe"))
    with pytest.raises(errors.NotFound):
        slots.read(str(tmp_path), OWNER, LIMITS)


def test_a_file_that_cannot_be_written_leaves_the_old_one(path, monkeypatch):
    slots.write(path, CONTENT, OWNER)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.Unavailable, match="No space left"):
        slots.write(path, SlotContent(b"", b"", b""), OWNER)

    assert slots.read(path, OWNER, LIMITS)[0] == CONTENT
    assert os.listdir(os.path.dirname(path)) == ["a.slot"]


# An engine without the real model.


def test_a_model_that_keeps_no_prefixes_says_so(engine, path):
    for act in (lambda: engine.save_slot(0, path), lambda: engine.erase_slot(0)):
        with pytest.raises(errors.NotSupported, match="not kept"):
            act()
    assert not os.path.exists(path)


def test_a_slot_that_there_is_not_is_refused(engine, path):
    for slot in (-1, 4):
        with pytest.raises(errors.Refused, match="from 0 to 3"):
            engine.erase_slot(slot)


def test_a_busy_slot_is_waited_for_some_time_and_no_longer(path, monkeypatch):
    monkeypatch.setattr(slots, "PATIENCE", 0.01)
    with opened(model=SLOW) as engine, engine.submit(job(max_tokens=400, slot=1)):
        wait_until(lambda: engine.slots()[1].is_busy)
        with pytest.raises(errors.SlotBusy, match="slot 1"):
            engine.save_slot(1, path)


def test_few_slot_requests_run_at_once(path, monkeypatch):
    monkeypatch.setattr(slots, "PATIENCE", 20)
    with opened(model=SLOW) as engine, engine.submit(job(max_tokens=400, slot=1)) as reader:
        wait_until(lambda: engine.slots()[1].is_busy)
        waiting = [gevent.spawn(engine.erase_slot, 1) for _ in range(slots.MOST_AT_ONCE)]
        gevent.sleep(0)
        with pytest.raises(errors.QueueFull, match="slots"):
            engine.erase_slot(1)
        reader.cancel()
        gevent.joinall(waiting, timeout=20)

    assert all(isinstance(one.exception, errors.NotSupported) for one in waiting)


# The real model.


@pytest.fixture(scope="module")
def real() -> Iterator[Engine]:
    with opened(model=packaged_model(), slots=2, ctx=1024) as engine:
        yield engine


def asked(engine: Engine, slot: int, caller: str = "") -> tuple[str, int]:
    """The text, and how many tokens of the prompt were known already."""
    chunks = read_all(engine.submit(job(QUESTION, slot=slot, terms=Terms(caller=caller))))
    return text_of(chunks), chunks[-1].cached_tokens


@pytest.mark.model
def test_another_engine_goes_on_where_the_first_one_was(path):
    chosen = {"model": packaged_model(), "slots": 2, "ctx": 1024}
    with opened(**chosen) as engine:
        expected, cold = asked(engine, 1)
        n_prompt = engine.slots()[1].prompt_tokens
        saved = engine.save_slot(1, path)
    with opened(**chosen) as engine:
        restored = engine.restore_slot(0, path)  # at once, while the KV cache may still have its first size
        text, warm = asked(engine, 1)
        again = engine.save_slot(0, path + "2")

    assert cold == 0
    assert restored == saved == again == SlotFile(n_prompt + 7, os.path.getsize(path))
    assert (text, warm) == (expected, n_prompt - 1)
    assert n_prompt > 256


@pytest.mark.model
def test_what_is_erased_is_computed_again(real, path):
    expected, _ = asked(real, 0)
    n_erased = real.erase_slot(0)

    assert n_erased == real.slots()[0].prompt_tokens + 7
    assert real.erase_slot(0) == 0
    with pytest.raises(errors.Refused, match="holds nothing"):
        real.save_slot(0, path)
    assert asked(real, 0) == (expected, 0)


@pytest.mark.model
def test_a_slot_and_its_file_are_one_caller_s(real, path):
    _, cold = asked(real, 0, "anna")
    with pytest.raises(errors.Refused, match="holds nothing"):
        real.save_slot(0, path, "ben")
    assert real.erase_slot(0, "ben") == 0
    real.save_slot(0, path, "anna")
    with pytest.raises(errors.NotFound):
        real.restore_slot(1, path, "ben")

    assert cold == 0
    assert asked(real, 1, "ben")[1] == 0
    assert real.restore_slot(1, path, "anna").n_tokens == real.erase_slot(1, "anna")


@pytest.mark.model
def test_a_file_whose_state_is_anything_is_refused_and_the_engine_goes_on(real, path):
    expected, _ = asked(real, 0)
    real.save_slot(0, path)
    real.erase_slot(0)
    whole = Path(path).read_bytes()
    n_tokens = HEADER.unpack(whole[: HEADER.size])[4]
    state = HEADER.size + 4 * n_tokens
    # What libllama's own header has: how many streams and cells, their positions and sequences, then types and sizes.
    places = [state + 4 * word for word in range(12)] + [state + 12 * n_tokens + 4 * word for word in range(12)]
    n_taken = 0

    for at in places:
        for to in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x80"):
            Path(path).write_bytes(whole)
            changed(path, at, to)
            with suppress(errors.Refused):
                real.restore_slot(1, path)
                n_taken += 1
                real.erase_slot(1)
    Path(path).write_bytes(whole)
    assert real.restore_slot(1, path).n_tokens == n_tokens  # nothing of the others is left in the slot
    real.erase_slot(1)
    changed(path, HEADER.size, b"\xff\xff\xff\x7f")
    with pytest.raises(errors.Refused, match="unknown token"):
        real.restore_slot(1, path)

    assert n_taken < 3 * len(places)
    assert asked(real, 0) == (expected, 0)
