"""Finds the standard library's subprocess, whether gevent has patched the process or not.

Its Popen forks in C, within milliseconds; gevent's runs Python in the copy of a process that may have many threads.
Where gevent has patched, the common module can start nothing any more, and the os that it uses closes descriptors late.
"""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType
from typing import Any

from gevent.monkey import get_original


def _plain_os() -> ModuleType:
    module = ModuleType("os")
    vars(module).update((name, get_original("os", name)) for name in dir(os))
    return module


def _copy() -> Any:
    spec = importlib.util.find_spec("subprocess")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.os = _plain_os()
    return module


plain_subprocess = _copy()
