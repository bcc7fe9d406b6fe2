"""Imports the author's module that a reference names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType

from corosrv.base.errors import LoadError


def module_from_file(path: str) -> ModuleType:
    """Imports a file under its own name. Raises LoadError if it is not there, and what its code raises."""
    if not os.path.isfile(path):
        raise LoadError(f"there is no file {path} (looked in {os.getcwd()})")
    folder, file = os.path.split(os.path.abspath(path))
    # Its neighbours can be imported, as if it had been started as a program.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    stem = file.removesuffix(".py")
    # Under its own name, which pickle goes by, unless that is another module's.
    name = f"_predictor_{stem}" if stem in sys.modules or stem in sys.stdlib_module_names else stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "every .py file has a loader"
    assert spec.loader is not None, "every .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def module_from_name(name: str, advice: str, directory: str = "") -> ModuleType:
    """Imports a module, which may lie in `directory` (empty: the working one).

    Raises LoadError, which ends with `advice`, if there is none, and what its code raises.
    """
    directory = os.path.abspath(directory)
    if directory not in sys.path and not (directory == os.getcwd() and "" in sys.path):
        sys.path.insert(0, directory)
    try:
        spec = importlib.util.find_spec(name)
    except ImportError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # the package is there, and lacks something itself
            raise
        spec = None
    except ValueError:
        spec = None
    if spec is None:
        raise LoadError(f"there is no module {name!r}: {advice}")
    return importlib.import_module(name)
