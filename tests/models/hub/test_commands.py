"""corosrv models pull and rm, and llama-server's flags for models of a hub."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corosrv import cli
from corosrv.contracts.settings import load
from tests.models.hub.test_pull import MODEL, OTHER
from tests.support.hub_server import HubServer, Repo


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (("-hf", "o/r:Q4_K_M"), "hf:o/r:Q4_K_M"),
        (("--hf-repo", "o/r", "--hf-file", "sub/m.gguf"), "hf:o/r/sub/m.gguf"),
        (("-hfr", "o/r@v1:Q8_0", "-hff", "m.gguf"), "hf:o/r@v1/m.gguf"),
        (("-m", "hf:o/r@v1"), "hf:o/r@v1"),
    ],
)
def test_llama_server_s_flags_name_a_model(served: list[dict[str, object]], flags: tuple[str, ...], model: str) -> None:
    result = run("serve", *flags, "-hft", "secret", "--no-mmproj", "--no-context-shift")

    assert (result.exit_code, len(served)) == (0, 1), result.output
    settings = load()  # as a worker process reads what was handed down
    assert settings.models[0].model == model
    assert (settings.hub.hf_token, settings.models[0].mmproj_auto) == ("secret", False)
    assert not settings.models[0].context_shift


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-hff", "m.gguf"), "add --hf-repo OWNER/REPO"),
        (("-hf", "o/r", "-m", "m.gguf"), "--hf-repo and --model name a model each"),
        (("-hf", "../r"), "a model of a hub must be"),
        (("-hf", "o/r", "-hff", "../m.gguf"), "without '..'"),
    ],
)
def test_flags_that_name_no_model_are_refused(
    served: list[dict[str, object]], flags: tuple[str, ...], words: str
) -> None:
    result = run("serve", *flags)

    assert result.exit_code == 1
    assert words in result.output
    assert served == []


def test_the_library_s_absence_is_told_with_the_command_that_installs_it(
    served: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)

    result = run("serve", "-hf", "o/r")

    assert result.exit_code == 1
    assert "pip install 'corosrv[hub]'" in result.output
    assert served == []


def test_pull_prints_where_the_files_are(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL, "mmproj-F16.gguf": OTHER})

    result = run("models", "pull", "o/r:Q8_0")

    model, projector = result.stdout.split()
    assert (model.rpartition("/")[2], projector.rpartition("/")[2]) == ("m-Q8_0.gguf", "mmproj-F16.gguf")
    assert "0 of 0 MB (100 %)" in result.stderr


def test_pull_that_is_told_to_stay_offline_asks_no_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL})
    online = run("models", "pull", "o/r:Q8_0")
    hub.requests.clear()
    monkeypatch.setenv("COROSRV_OFFLINE", "1")

    offline = run("models", "pull", "o/r:Q8_0")

    assert (offline.stdout, offline.exit_code) == (online.stdout, 0)
    assert "the files in the cache are used, for COROSRV_OFFLINE is set" in offline.stderr
    result = run("models", "pull", "o/new")
    assert result.exit_code == 1
    assert re.search("o/new is not in the cache .*, and COROSRV_OFFLINE is set: unset it", result.stderr)
    assert hub.requests == []


@pytest.mark.parametrize(
    "arguments",
    [("pull", "--offline", "o/r"), ("--offline", "1", "pull", "o/r"), ("--config", "offline.toml", "pull", "o/r")],
)
def test_every_source_of_settings_counts_for_pull(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("offline.toml").write_text("offline = true\n")

    result = run("models", *arguments)

    assert result.exit_code == 1
    assert "COROSRV_OFFLINE is set" in result.stderr
    assert hub.requests == []


def test_models_lists_what_was_pulled_and_rm_removes_it(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL})
    run("models", "pull", "hf:o/r")
    listed = run("models", "--model", "hf:o/r").stdout

    removed = run("models", "rm", "hf:o/r")

    assert listed.startswith("o/r  of a hub  hf:o/r\n\nin the cache:\nhf:o/r  0 MB  used ")
    assert listed.endswith("  m-Q8_0.gguf\n")
    assert removed.stdout == "0 MB freed\n"
    assert "in the cache" not in run("models", "--model", "synthetic:").stdout


def test_a_wrong_name_is_refused_with_how_one_is_written(hub: HubServer) -> None:
    result = run("models", "pull", "hf:o")

    assert result.exit_code == 2
    assert "must be hf:OWNER/REPO, with :QUANTISATION or /FILE.gguf behind it" in result.stderr
    unknown = run("models", "pull", "hf:o/none")
    assert unknown.exit_code == 1
    assert "has no repository o/none" in unknown.stderr
    assert hub.requests


def test_the_command_line_imports_the_library_only_for_models_of_a_hub() -> None:
    script = "import sys, corosrv.cli; sys.exit('huggingface_hub' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
