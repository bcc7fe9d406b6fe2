"""Which room of native/src may include which: each the floors below its own, and no other room of its floor."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "native" / "src"
FLOORS = (
    ("base",),
    ("kernels", "model"),
    ("grammar", "handover", "llama", "text"),
    ("recording", "sampling"),
    ("loop",),
    ("api",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Only llama/ computes graphs, and only api/ opens a model.
CLOSED = {"kernels": {"llama"}, "llama": {"api"}}


def included(room: str) -> set[str]:
    """The rooms, without this one, that some file of this room includes a header of."""
    files = [path for path in (SOURCES / room).iterdir() if path.suffix in (".h", ".cpp")]
    rooms = (re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE) for path in files)
    return set().union(*rooms) - {room}


def test_every_room_has_its_floor():
    assert {path.name for path in SOURCES.iterdir()} == set(FLOOR_OF)


@pytest.mark.parametrize("room", sorted(FLOOR_OF))
def test_a_room_includes_only_those_on_lower_floors(room: str):
    below = {name for name, floor in FLOOR_OF.items() if floor < FLOOR_OF[room]}
    closed = {name for name, users in CLOSED.items() if room not in users}

    assert included(room) <= below - closed


def test_only_llama_includes_llama_h():
    knows = {path.parent.name for path in SOURCES.rglob("*.[hc]*") if "<llama.h>" in path.read_text()}

    assert knows == {"llama"}


def test_every_folder_of_native_tests_is_a_room_or_a_tool():
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir()} - {"build", "__pycache__"}

    assert folders - {"fakes", "fuzz", "ggml", "oracle", "world"} <= set(FLOOR_OF)


def test_only_the_api_room_knows_the_c_types():
    others = [path for path in SOURCES.glob("*/*") if path.parent.name != "api"]

    assert others
    assert not [path for path in others if re.search(r"\bcorosrv(_types)?\.h\b|\bcorosrv_[a-z]", path.read_text())]
