"""Finding libllama: one copy in the process, and never one that the extension was not built with."""

import os
from pathlib import Path

import pytest

from corosrv.base.errors import LibllamaError
from corosrv.models.engine import libllama
from tests.support import children

MAPPED = """
    import sys, warnings
    warnings.simplefilter("default")  # llama_cpp's own
    for name in sys.argv[1:]:
        __import__(name)
    with open("/proc/self/maps") as maps:
        print(*sorted({line.split()[-1] for line in maps if "libllama" in line or "libggml-base" in line}))
"""


@pytest.mark.parametrize(
    "modules",
    [
        ("corosrv.models.engine.binding",),
        ("corosrv.models.engine.binding", "llama_cpp"),
        ("llama_cpp", "corosrv.models.engine.binding"),
    ],
    ids=" then ".join,
)
def test_the_process_holds_one_copy(modules):
    names = [Path(path).name.split(".")[0] for path in children.output(MAPPED, *modules).split()]

    assert sorted(names) == ["libggml-base", "libllama"]


def test_looking_for_devices_brings_no_second_copy_of_ggml():
    code = """
        import corosrv.models.engine.binding
        from corosrv.models.engine import libllama
        assert libllama.devices()
        with open("/proc/self/maps") as maps:
            print(*sorted({line.split()[-1] for line in maps if "libggml" in line}))
    """

    names = [Path(path).name.split(".")[0] for path in children.output(code).split()]

    assert "libggml" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("chosen", "turns"),
    [({}, str(libllama.BARRIER_TURNS)), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
    ids=["default", "turns", "policy"],
)
def test_threads_wait_at_barriers_as_the_user_says_or_shortly_and_children_inherit_nothing(chosen, turns: str):
    code = "import os, corosrv.models.engine.binding; print(*(name for name in os.environ if 'OMP_' in name))"
    inherited = {name: value for name, value in os.environ.items() if "OMP_" not in name}

    child = children.python(code, env=inherited | {"OMP_DISPLAY_ENV": "verbose"} | chosen)

    if "GOMP_SPINCOUNT" not in child.stderr:
        pytest.skip("libllama was built with another OpenMP than GNU's, or with none")
    assert f"GOMP_SPINCOUNT = '{turns}'" in child.stderr
    assert set(child.stdout.split()) == {"OMP_DISPLAY_ENV", *chosen}


@pytest.fixture
def copy(tmp_path) -> Path:
    """A folder in which libllama stands as installed, its headers to be changed."""
    lib, include = tmp_path / "llama_cpp" / "lib", tmp_path / "include"
    lib.mkdir(parents=True)
    include.mkdir()
    for library in libllama.folder().iterdir():
        (lib / library.name).symlink_to(library)
    headers = libllama.headers()
    assert headers is not None
    for header in headers:
        (include / header.name).write_bytes(header.read_bytes())
    return lib


def start(lib: Path) -> str:
    """The last line of a process that imports the engine with the libllama of this folder."""
    child = children.python(
        "import corosrv.models.engine.binding; print('started')", env={**os.environ, "LLAMA_CPP_LIB_PATH": str(lib)}
    )
    return (child.stdout or child.stderr).strip().splitlines()[-1]


def test_another_folder_may_be_named(copy):
    assert start(copy) == "started"


@pytest.mark.parametrize("name", ["llama.h", "ggml.h"])
def test_a_changed_header_is_refused_in_one_sentence(copy, name):
    with (copy.parent.parent / "include" / name).open("a") as header:
        header.write("// another version\n")

    words = start(copy)

    assert words.startswith("corosrv.base.errors.LibllamaError: the installed llama-cpp-python is not the one")
    assert "pip install --force-reinstall" in words


def test_a_missing_library_is_refused_in_one_sentence(tmp_path):
    words = start(tmp_path)

    assert words.startswith("corosrv.base.errors.LibllamaError: libllama cannot be loaded from libllama.so")


def test_without_llama_cpp_python_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(LibllamaError, match="pip install"):
        libllama.folder()


def test_a_library_without_a_header_is_taken_on_trust(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))

    libllama.check_fingerprint("0" * 64)


def test_importing_the_engine_does_not_import_llama_cpp():
    assert children.output("import sys, corosrv.models.engine.engine; print('llama_cpp' in sys.modules)") == "False"
