"""Reads what an author declared with decorators, of this package or of cog's."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from corosrv.workers.worker.predictor import CONCURRENT, STREAMING

_COG_CONCURRENT = "__cog_concurrent_max__"  # what Cog's own @concurrent leaves


def concurrency(*functions: Callable[..., Any]) -> int | None:
    """Returns N of @concurrent(max=N) on the outermost function that has it, else None."""
    marks = (getattr(function, mark, None) for function in functions for mark in (CONCURRENT, _COG_CONCURRENT))
    return next((most for most in marks if most is not None), None)


def is_streaming(*functions: Callable[..., Any]) -> bool:
    """Returns whether a function has @streaming. cog's decorator leaves no mark, so this looks for it in the source."""
    return any(getattr(f, STREAMING, False) or _has_cogs_mark(f) for f in functions)


def find_defaults(function: Callable[..., Any]) -> dict[str, bool]:
    """Returns for each parameter with cog's `Input(...)` whether the source names a default in it.

    The object itself does not tell: its default is None both without one and with `default=None`.
    """
    definition = _definition(function)
    if definition is None:
        return {}
    arguments, namespace = definition.args, getattr(function, "__globals__", {})
    placed = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(placed), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    calls = {
        name.arg: call for name, call in pairs if isinstance(call, ast.Call) and _is_cogs(call, "Input", namespace)
    }
    return {
        name: bool(call.args) or any(word.arg in ("default", None) for word in call.keywords)
        for name, call in calls.items()
    }


def _has_cogs_mark(function: Callable[..., Any]) -> bool:
    definition, namespace = _definition(function), getattr(function, "__globals__", {})
    return definition is not None and any(_is_cogs(mark, "streaming", namespace) for mark in definition.decorator_list)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):  # no source, as of a compiled module
        return None
    first = tree.body[0]
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _is_cogs(expression: ast.expr, name: str, namespace: dict[str, Any]) -> bool:
    """Returns whether an expression is cog's `name`, called or not, under whatever name it was imported."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        target = getattr(namespace.get(expression.value.id), expression.attr, None)
    else:
        target = namespace.get(expression.id) if isinstance(expression, ast.Name) else None
    return getattr(target, "__name__", "") == name and getattr(target, "__module__", "").split(".")[0] == "cog"
