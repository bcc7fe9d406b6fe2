"""What an author declared with decorators, of this package or of cog's."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from corosrv.worker.predictor import CONCURRENT, STREAMING

_COG_CONCURRENT = "__cog_concurrent_max__"  # what Cog's own @concurrent leaves


def concurrency(*functions: Callable[..., Any]) -> int | None:
    """What @concurrent(max=N) says, on the outermost that has it."""
    marks = (getattr(function, mark, None) for function in functions for mark in (CONCURRENT, _COG_CONCURRENT))
    return next((most for most in marks if most is not None), None)


def is_streaming(*functions: Callable[..., Any]) -> bool:
    """Whether @streaming stands over one. cog's leaves no mark, so it is looked for in the source."""
    return any(getattr(f, STREAMING, False) or _has_cogs_mark(f) for f in functions)


def _has_cogs_mark(function: Callable[..., Any]) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, as of a compiled module
        return False
    known = getattr(function, "__globals__", {})
    return any(_is_cogs_streaming(mark, known) for mark in getattr(tree.body[0], "decorator_list", ()))


def _is_cogs_streaming(mark: ast.expr, known: dict[str, Any]) -> bool:
    """`@streaming`, `@streaming()` or `@cog.streaming`, under whatever names they were imported."""
    if isinstance(mark, ast.Call):
        mark = mark.func
    if isinstance(mark, ast.Attribute) and isinstance(mark.value, ast.Name):
        found = getattr(known.get(mark.value.id), mark.attr, None)
    else:
        found = known.get(mark.id) if isinstance(mark, ast.Name) else None
    return getattr(found, "__name__", "") == "streaming" and getattr(found, "__module__", "").split(".")[0] == "cog"
