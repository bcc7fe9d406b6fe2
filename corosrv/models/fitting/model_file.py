"""Looks whether a file begins as a model does, and says what it is instead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings
from corosrv.models.hub import cache
from corosrv.models.recording import fault_of_path

_HEAD = 512  # bytes, of which a file is known
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}(?::{_PART})?")
_OLLAMA_NAME = re.compile(rf"{_PART}(?::{_PART})?")
_CONVERT = "convert it with llama.cpp's convert_hf_to_gguf.py, or download the model's GGUF"
_AGAIN = "download the model file itself"

# What begins other files that people have in place of a model, and what to do.
_KINDS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(rb"version https://git-lfs\.github\.com/"),
        "is a pointer of Git LFS, which stands in place of the model: run `git lfs pull` in its repository",
    ),
    (
        re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE),
        f"is a web page, as a failed download leaves it: {_AGAIN}",
    ),
    (re.compile(rb"PK\x03\x04|\x80[\x02-\x05]"), f"is a file of PyTorch or a zip archive, and no GGUF: {_CONVERT}"),
    (re.compile(rb".{8}\{", re.DOTALL), f"is a safetensors file, and no GGUF: {_CONVERT}"),
)


def check_model_files(model: ModelSettings) -> None:
    """Looks for the files of a model's settings. Raises SettingsError for one that is none, HubMissing."""
    if model.record and (fault := fault_of_path(model.record)):
        raise SettingsError(f"--record: {fault}")
    if model.is_hub:
        cache.check_installed()
    elif not model.is_synthetic and not os.path.isfile(model.model):
        raise SettingsError(f"the model file {model.model} {flaw_of(Path(model.model))}")
    draft = Path(model.model_draft)
    if model.model_draft and not draft.is_file():
        raise SettingsError(f"the draft model {draft} does not exist: give the path of a GGUF file with --model-draft")
    if model.model_draft and (flaw := flaw_of(draft)):
        raise SettingsError(f"the draft model {draft} {flaw}")
    for path, _ in model.adapters:
        if not Path(path).is_file():
            raise SettingsError(f"the LoRA adapter {path} does not exist: give the paths of GGUF files with --lora")


def flaw_of(path: Path) -> str:
    """Returns why this is no model file, and what to do; empty where it begins as a GGUF does."""
    if os.path.isdir(path):  # also of a name that is too long, at which Path's own would raise
        return "is a folder: name the .gguf file in it, of a model in parts the first"
    if not os.path.isfile(path):
        return f"does not exist: {_hub_hint(str(path))}give the path of a GGUF file with --model or COROSRV_MODEL"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        return f"cannot be read ({error.strerror}): let the user who starts the server read it"
    if head.startswith(b"GGUF"):
        return ""
    if not head.strip(b"\0"):
        return f"is empty or holds zeros, as a download that broke off leaves it: {_AGAIN}"
    words = next((words for beginning, words in _KINDS if beginning.match(head)), "")
    return words or f"is not a GGUF file (it does not begin with 'GGUF'): {_AGAIN}, whose name ends in .gguf"


def _hub_hint(path: str) -> str:
    """Returns a hint for a path that looks like a name on a hub, or like one of Ollama's; empty for others."""
    if path.lower().endswith(".gguf"):
        return ""
    if _REPOSITORY.fullmatch(path):
        return f"a model of a Hugging Face hub is --model hf:{path}, otherwise "
    if _OLLAMA_NAME.fullmatch(path):
        return (
            "names of Ollama's are not known here; a model of a Hugging Face hub is --model hf:OWNER/REPO, otherwise "
        )
    return ""
