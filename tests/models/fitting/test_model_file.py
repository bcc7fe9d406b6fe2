"""Files that people give in place of a model."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from corosrv.models.fitting.model_file import flaw_of

HTML = b"\n<!DOCTYPE html><html><body>Not found</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
SAFETENSORS = struct.pack("<Q", 10) + b'{"a": "b"}'  # the length is a line's end


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (POINTER, "run `git lfs pull`"),
        (HTML, "is a web page"),
        (b"<?xml version='1.0'?><Error/>", "is a web page"),
        (b"PK\x03\x04archive/data.pkl", "is a file of PyTorch"),
        (b"\x80\x02}q\x00.", "is a file of PyTorch"),
        (SAFETENSORS, "is a safetensors file"),
        (b"", "is empty"),
        (bytes(1000), "holds zeros"),
        (b"FUGG", "does not begin with 'GGUF'"),
    ],
)
def test_a_file_that_is_no_model_is_named_for_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)

    assert words in flaw_of(file)


def test_a_folder_a_missing_file_and_one_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    assert flaw_of(tmp_path).startswith("is a folder")
    assert flaw_of(tmp_path / "none.gguf").startswith("does not exist")
    assert flaw_of(tmp_path / ("x" * 300)).startswith("does not exist")
    assert flaw_of(Path("/proc/self/mem")).startswith("cannot be read (")  # nobody may read its first bytes


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("ggml-org/gemma-3-4b-it-GGUF", "--model hf:ggml-org/gemma-3-4b-it-GGUF,"),
        ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "--model hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M,"),
        ("llama3.2:1b", "--model hf:OWNER/REPO,"),
        ("llama3", "--model hf:OWNER/REPO,"),
    ],
)
def test_a_missing_file_with_the_name_of_a_hubs_model_says_how_to_ask_for_that(path: str, words: str) -> None:
    assert words in flaw_of(Path(path))


def test_the_path_of_a_file_that_is_missing_is_taken_for_no_hubs_name() -> None:
    assert "hf:" not in flaw_of(Path("models/none.gguf"))
    assert "hf:" not in flaw_of(Path("/models/none"))


def test_what_begins_as_a_gguf_is_left_to_libllama(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")

    assert flaw_of(file) == ""
