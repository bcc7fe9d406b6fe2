"""The doctor: findings with advice, and a model that is really asked."""

import resource
import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from corosrv import cli, doctor
from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ModelSettings, Settings
from corosrv.doctor import Finding, Grade, examine
from tests.support import gguf, projector
from tests.support.engines import packaged_model


def findings(*models: ModelSettings, port: int = 0) -> dict[str, Finding]:
    chosen = Settings(models=models or (ModelSettings(model="synthetic:"),))
    return {finding.subject: finding for finding in examine(lambda: chosen, "127.0.0.1", port)}


def test_everything_is_looked_at_in_the_order_of_need():
    assert list(findings()) == [
        "compiler", "libllama", "devices", "processor", "settings", "model", "descriptors", "port"
    ]  # fmt: skip


def test_libllama_and_processor_are_named():
    found = findings()

    assert found["libllama"].grade is Grade.OK
    assert "cores" in found["processor"].text


def test_a_made_up_model_is_a_warning():
    assert findings()["model"].grade is Grade.WARN


def test_a_missing_model_is_fatal_and_says_what_to_set():
    found = findings(ModelSettings(model="/no/such.gguf"))["model"]

    assert found.is_fatal
    assert "COROSRV_MODEL" in found.advice


def test_a_file_that_is_no_model_is_fatal(tmp_path):
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"not a model")

    found = findings(ModelSettings(model=str(model)))["model"]
    assert found.is_fatal
    assert found.text.endswith("is not a GGUF file (it does not begin with 'GGUF')")
    assert found.advice.startswith("download the model file itself")


@pytest.mark.parametrize(
    ("lacks", "grade", "words"),
    [
        ([], Grade.OK, "mmproj.gguf, 0 MB, mlp, rows as wide as the model's; a small image became 16 of them in "),
        (["mm.2.weight", "mm.2.bias"], Grade.FAIL, "the encoder process ended by signal 11 (SIGSEGV)"),
    ],
    ids=["a good one", "one that ends libmtmd"],
)
def test_a_projector_is_tried_with_its_model(tmp_path, lacks, grade, words):
    model = gguf.write_llama(tmp_path / "tiny.gguf")
    mmproj = projector.write_mlp(tmp_path / "mmproj.gguf", 32, lacks)
    chosen = ModelSettings(model=str(model), mmproj=str(mmproj), slots=1, ctx=64, threads=1, encoder_threads=1)

    found = findings(chosen)["projector"]

    assert found.grade is grade
    assert found.text.startswith(words)


def test_a_projector_that_is_not_there_is_fatal_and_says_what_to_set(tmp_path):
    model = gguf.write_llama(tmp_path / "tiny.gguf")

    found = findings(ModelSettings(model=str(model), mmproj="/no/such.gguf", slots=1, ctx=64, threads=1))["projector"]

    assert found.is_fatal
    assert "COROSRV_MMPROJ" in found.advice


@pytest.mark.model
def test_a_model_that_works_gives_an_answer():
    found = findings(ModelSettings(model=packaged_model(), slots=1, ctx=128, threads=1))["engine"]

    assert found.grade is Grade.OK
    assert found.text.startswith("answers 'One, two,' with ")
    assert "kernels" in found.text


def test_wrong_settings_are_fatal_and_the_rest_is_still_looked_at():
    def load() -> Settings:
        raise SettingsError("COROSRV_SLOTS must be from 1 to 256, not 0")

    found = {finding.subject: finding for finding in examine(load, "127.0.0.1", 0)}

    assert found["settings"].is_fatal
    assert "COROSRV_SLOTS" in found["settings"].text
    assert "port" in found
    assert "model" not in found


def test_a_variable_that_is_no_setting_is_a_warning(monkeypatch):
    monkeypatch.setenv("COROSRV_SLOT", "4")

    found = findings()["settings"]

    assert found.grade is Grade.WARN
    assert "COROSRV_SLOT" in found.text


def test_a_predictor_alone_needs_no_model():
    assert "model" not in {finding.subject for finding in examine(Settings, "127.0.0.1", 0)}


def test_a_misspelt_variable_is_told_with_the_setting_that_may_be_meant(monkeypatch):
    monkeypatch.setenv("COROSRV_SLOTTS", "2")

    assert "COROSRV_SLOTTS (did you mean COROSRV_SLOTS?)" in findings()["settings"].text


def test_a_port_in_use_is_fatal():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = findings(port=listening.getsockname()[1])["port"]

    assert found.is_fatal
    assert "--port" in found.advice


def test_few_descriptors_are_a_warning(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))

    found = findings()["descriptors"]
    assert found.grade is Grade.WARN
    assert "1948 streams" in found.text


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [
        ("g++ (Debian 12.2.0-14) 12.2.0", True),
        ("g++ (GCC) 11.4.0", True),
        ("g++ (GCC) 12.3.0", True),
        ("g++ (GCC) 12.4.0", False),
        ("g++ (GCC) 13.2.0", True),
        ("g++ (GCC) 13.3.0", False),
        ("g++ (Ubuntu 14.2.0-4ubuntu2) 14.2.0", False),
        ("Debian clang version 14.0.6", False),
        ("something else", False),
    ],
)
def test_compilers_that_miscompile_amx_are_known(version, is_bad):
    assert doctor._miscompiles_amx(version) is is_bad


@pytest.mark.parametrize("has_amx", [True, False])
def test_a_bad_compiler_matters_on_a_processor_with_amx_only(monkeypatch, has_amx, fake_compiler):
    fake_compiler("g++ (GCC) 12.2.0")
    monkeypatch.setattr(
        "corosrv.models.engine.libllama.cpu_identity", lambda: "flags: avx2 amx_tile" if has_amx else "flags: avx2"
    )

    assert findings()["compiler"].grade is (Grade.WARN if has_amx else Grade.OK)


def test_no_compiler_is_a_warning(monkeypatch):
    monkeypatch.setenv("PATH", "")

    assert findings()["compiler"].text == "none found"


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Puts a c++ in the path that says it is of a version."""

    def install(version: str) -> None:
        program = tmp_path / "c++"
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@pytest.mark.parametrize(("model", "status"), [("synthetic:", 0), ("/no/such.gguf", 1)])
def test_the_command_s_status_says_whether_all_is_well(model, status):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]  # free again in a moment

    result = CliRunner().invoke(cli.main, ["doctor", "--model", model, "--port", str(port)])

    assert result.exit_code == status
    assert ("FAIL  model: " in result.output) is bool(status)
