"""What is read of a GGUF file before its tensors."""

import struct
from pathlib import Path

import pytest

from corosrv.base.errors import LoadError
from corosrv.images.encoder.opening import GgufHead
from tests.support import gguf

TENSORS = {"a.weight": ((4, 3), range(12)), "b.bias": ((5,), range(5))}


def write(path: Path, **values: object) -> str:
    return str(gguf.write(path / "file.gguf", {"general.architecture": "clip", **values}, TENSORS))


def test_texts_are_read_and_what_is_none_or_absent_is_empty(tmp_path):
    path = write(tmp_path, **{"general.name": "a b", "clip.vision.image_size": 56})

    with GgufHead(path) as head:
        assert head.text("general.architecture") == "clip"  # the first of all keys
        assert head.text("general.name") == "a b"
        assert head.text("clip.vision.image_size") == ""
        assert head.text("no.such.key") == ""


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"clip.vision.projector_type": "gemma3"}, "gemma3"),
        ({"clip.projector_type": "mlp"}, "mlp"),
        ({"clip.projector_type": "mlp", "clip.vision.projector_type": "gemma3"}, "gemma3"),
        ({}, "of no named type"),
    ],
)
def test_the_kind_of_a_projector_is_that_of_its_images(tmp_path, values, kind):
    with GgufHead(write(tmp_path, **values)) as head:
        assert head.projector_kind == kind


def test_a_file_ends_with_its_last_tensor_and_not_before(tmp_path):
    path, last = write(tmp_path), struct.pack("<5f", *range(5))
    end = Path(path).read_bytes().rindex(last) + len(last)
    with GgufHead(path) as head:
        with open(path, "r+b") as file:
            file.truncate(end)
            head.check_length()
            file.truncate(end - 1)

        with pytest.raises(LoadError, match=rf"file\.gguf was cut: it has {end - 1} bytes, .* need {end}"):
            head.check_length()


def test_a_file_without_tensors_is_long_enough(tmp_path):
    path = gguf.write(tmp_path / "file.gguf", {"general.architecture": "llama"}, {})

    with GgufHead(str(path)) as head:
        head.check_length()


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path):
    (tmp_path / "file.gguf").write_text("no GGUF")

    with pytest.raises(LoadError, match=r"file\.gguf cannot be opened as a GGUF file"):
        GgufHead(str(tmp_path / "file.gguf"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) << 12


def test_heads_that_are_closed_leave_no_memory_behind(tmp_path):
    path, n_bytes = write(tmp_path, **{"general.name": "x" * (4 << 20)}), []

    for _ in range(50):
        with GgufHead(path):
            pass
        n_bytes.append(resident_bytes())

    assert n_bytes[-1] - n_bytes[9] < 80 << 20
