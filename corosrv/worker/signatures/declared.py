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


def says_default(function: Callable[..., Any]) -> dict[str, bool]:
    """Of each parameter behind which cog's `Input(...)` is written out: whether that names a default.

    It leaves None both where none is named and where that one is.
    """
    definition = _definition(function)
    if definition is None:
        return {}
    said, known = definition.args, getattr(function, "__globals__", {})
    placed = [*said.posonlyargs, *said.args]
    pairs = [
        *zip(reversed(placed), reversed(said.defaults), strict=False),
        *zip(said.kwonlyargs, said.kw_defaults, strict=True),
    ]
    calls = {name.arg: call for name, call in pairs if isinstance(call, ast.Call) and _is_cogs(call, "Input", known)}
    return {
        name: bool(call.args) or any(word.arg in ("default", None) for word in call.keywords)
        for name, call in calls.items()
    }


def _has_cogs_mark(function: Callable[..., Any]) -> bool:
    definition, known = _definition(function), getattr(function, "__globals__", {})
    return definition is not None and any(_is_cogs(mark, "streaming", known) for mark in definition.decorator_list)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, as of a compiled module
        return None
    first = tree.body[0]
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _is_cogs(said: ast.expr, name: str, known: dict[str, Any]) -> bool:
    """`name`, `name()` or `cog.name`, under whatever names they were imported."""
    if isinstance(said, ast.Call):
        said = said.func
    if isinstance(said, ast.Attribute) and isinstance(said.value, ast.Name):
        found = getattr(known.get(said.value.id), said.attr, None)
    else:
        found = known.get(said.id) if isinstance(said, ast.Name) else None
    return getattr(found, "__name__", "") == name and getattr(found, "__module__", "").split(".")[0] == "cog"
