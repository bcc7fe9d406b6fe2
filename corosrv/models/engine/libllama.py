"""Finds libllama and opens it before the extension is imported, so that the process holds one copy of it.

llama-cpp-python opens `llama_cpp/lib/libllama.so`; a linker records `libllama.so.0`, which in a wheel is another file.
Whoever is opened first under the SONAME that both share is the one that everybody gets. What decides about its kernels
is read here as well: the devices, the processor's model, and the cores that this process may use.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from corosrv.base.errors import LibllamaError

REBUILD = "rebuild corosrv against it: pip install --force-reinstall --no-deps corosrv (in a clone: make install)"

_PROCESSOR_TYPES = (0, 3)  # of ggml_backend_dev_type: the processor, and what helps it with the memory of the machine


# What native/bundle.py puts into the wheel of a release: llama-cpp-python's libraries and their declarations.
BUNDLE = Path(__file__).parents[2] / "bundle"
_KERNELS = "libggml-cpu-*.so"

# How often a thread looks for the others at a barrier of OpenMP before it sleeps: for some tenths of a millisecond.
# GNU's own 300,000 are milliseconds in which it keeps a core from other processes, or from the thread it waits for.
BARRIER_TURNS = 20_000
_WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

_NO_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def folder() -> Path:
    """Returns libllama's folder: the one of `LLAMA_CPP_LIB_PATH`, else of the wheel, else of llama-cpp-python."""
    if override := os.environ.get("LLAMA_CPP_LIB_PATH"):
        return Path(override)
    if BUNDLE.is_dir():
        return BUNDLE / "llama_cpp" / "lib"
    # find_spec does not import the package, which would cost 0.3 s and numpy.
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise LibllamaError(
            "llama-cpp-python is not installed: pip install corosrv brings it (in a clone: make install)"
        )
    return Path(spec.submodule_search_locations[0]) / "lib"


def headers() -> tuple[Path, Path] | None:
    """Returns the llama.h and ggml.h that came with the library, if they did."""
    places = folder().parent.parent / "include", folder().parent / "include"
    pairs = ((place / "llama.h", place / "ggml.h") for place in places)
    return next((pair for pair in pairs if all(header.is_file() for header in pair)), None)


def open_library() -> None:
    """Loads libllama into the process; later loads of the same SONAME get this copy."""
    path = folder() / "libllama.so"
    try:
        with _short_waits():
            library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibllamaError(f"libllama cannot be loaded from {path.name}: {error}") from error
    # Others are not asked for their devices here: that would open a GPU in a process that is to fork.
    if any(path.parent.glob(_KERNELS)) and library.ggml_backend_dev_count() == 0:
        # Built with GGML_BACKEND_DL: the kernels are libraries beside it. ggml loads the best ones for the processor.
        library.ggml_log_set(_NO_LOG, None)  # it would print a line in every process
        library.ggml_backend_load_all_from_path(str(path.parent).encode())
        library.ggml_log_set(None, None)
        if library.ggml_backend_dev_count() == 0:
            raise LibllamaError(f"no library of kernels in {path.parent} suits this processor")


@contextmanager
def _short_waits() -> Iterator[None]:
    """Lets an OpenMP that is loaded meanwhile wait at barriers as BARRIER_TURNS says, unless the user says how.

    It reads the variable once. Child processes are not to inherit it: those of users have an OpenMP of their own.
    """
    if any(name in os.environ for name in _WAIT_VARIABLES):
        yield
        return
    os.environ[_WAIT_VARIABLES[0]] = str(BARRIER_TURNS)
    try:
        yield
    finally:
        del os.environ[_WAIT_VARIABLES[0]]


def provide_declarations() -> None:
    """Opens libllama, and puts the declarations of the one in the wheel onto the path of imports, as `llama_cpp`."""
    open_library()
    if BUNDLE.is_dir() and str(BUNDLE) not in sys.path:
        sys.path.insert(0, str(BUNDLE))


def kernel_library() -> str:
    """Returns the name of the library in this process whose kernels the processor runs, as libggml-cpu-haswell."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libggml-cpu" in line}
    return ", ".join(sorted(Path(path).name.partition(".")[0] for path in paths))


class Device(NamedTuple):
    """A device that libllama can compute on."""

    name: str  # as settings name it, CUDA0 or CPU
    description: str
    is_processor: bool
    free: int = 0  # bytes of its memory


def devices() -> list[Device]:
    """Returns the devices that libllama sees, the processor among them."""
    # libllama's own ggml, found through libllama: another file of the same name would be a second copy in the process.
    library = ctypes.CDLL(str(folder() / "libllama.so"))
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.argtypes, library.ggml_backend_dev_get.restype = [ctypes.c_size_t], ctypes.c_void_p
    functions = {}
    for name, result in (("name", ctypes.c_char_p), ("description", ctypes.c_char_p), ("type", ctypes.c_int)):
        functions[name] = function = getattr(library, f"ggml_backend_dev_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], result
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = library.ggml_backend_dev_memory
    memory.argtypes, memory.restype = [ctypes.c_void_p, size, size], None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    seen = []
    for number in range(library.ggml_backend_dev_count()):
        device = library.ggml_backend_dev_get(number)
        name, description = functions["name"](device), functions["description"](device)
        is_processor = functions["type"](device) in _PROCESSOR_TYPES
        memory(device, ctypes.byref(free), ctypes.byref(total))
        seen.append(Device(name.decode(), description.decode(), is_processor, free.value))
    return seen


def check_fingerprint(built_with: str) -> None:
    """Refuses a libllama whose headers are not those that the extension was built with.

    Struct layouts change between versions and the SONAME does not: a mismatch would be memory corruption.
    """
    installed = headers()
    if installed is None or not built_with:
        return
    if hashlib.sha256(b"".join(header.read_bytes() for header in installed)).hexdigest() != built_with:
        raise LibllamaError(f"the installed llama-cpp-python is not the one corosrv was built with; {REBUILD}")


def physical_cores() -> int:
    """Returns the cores that this process may use; two hardware threads of a core count once."""
    cpus = os.sched_getaffinity(0)
    cores = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(cpus)
    return max(len(cores), 1)


def cpu_identity() -> str:
    """Returns the processor's model and instruction sets, which decide which kernels libllama may run."""
    names = ("model name", "flags", "Features", "CPU part")
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                lines.setdefault(name.strip(), value.strip())
    except OSError:
        return os.uname().machine
    return "; ".join(f"{name}: {value}" for name, value in sorted(lines.items()))
