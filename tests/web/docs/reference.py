"""Makes docs/reference.md of the docstrings of corosrv.worker: `python -m tests.web.docs.reference` writes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corosrv.worker
from corosrv.workers.worker.app.objects import Objects

PAGE = Path(__file__).parents[3] / "docs" / "reference.md"
HEAD = """# Reference: what `corosrv.worker` offers

Made of the docstrings by `python -m tests.web.docs.reference`; a test fails where it is stale. The guide has the whole
picture: [applications](guide/applications.md), [predictions](guide/predictions.md).
"""
TOPICS = {
    "Applications": """
        App Worker ModelInferRequest ModelInferResponse Tensor TensorSpec Context AsyncContext Objects ObjRef
    """,
    "Errors of applications": """
        AppError InvalidInput NotFound Conflict Unavailable Cancelled DeadlineExceeded HandlerFailed WorkerLost
    """,
    "Predictions": """
        BasePredictor BaseRunner Input Path File Secret Opaque BaseModel ConcatenateIterator AsyncConcatenateIterator
        CancelationException concurrent streaming current_scope
    """,
}
GIVEN = {"Context", "AsyncContext", "Objects", "ObjRef", "Path"}  # authors make none, or as pathlib says
INTERNAL = {"App.pools", "Tensor.from_checked", "TensorSpec.allows", "TensorSpec.shape_for"}


def page() -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    for topic, names in TOPICS.items():
        parts.append(f"## {topic}\n")
        parts += [text for name in names.split() for text in described(name, object_of(name))]
    return "\n".join(parts)


def object_of(name: str) -> Any:
    """Returns what an author imports by this name, or what a context has."""
    return Objects if name == "Objects" else getattr(corosrv.worker, name)


def described(name: str, subject: Any) -> Iterator[str]:
    """Yields the entry of a class or a function, then those of its members."""
    yield f"### {name}\n"
    if name not in GIVEN and (call := signature(name, subject)):
        yield f"```python\n{call}\n```\n"
    yield f"{text_of(subject)}\n"
    if inspect.isclass(subject):
        init = vars(subject).get("__init__")
        if init is not None and init.__doc__ and "See help(type(self))" not in init.__doc__:
            yield f"{text_of(init)}\n"
        for member, value in members(subject):
            if f"{name}.{member}" not in INTERNAL:
                yield entry(f"{name}.{member}", value)


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties that classes of this package define, in their order there."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("corosrv.worker") or base is kind:
            found |= {name: value for name, value in vars(base).items() if is_member(name, value)}
    yield from found.items()


def is_member(name: str, value: Any) -> bool:
    is_described = bool(getattr(value, "__doc__", None))
    kinds = (property, functools.cached_property, classmethod, staticmethod)
    is_public = not name.startswith("_") or name == "__getitem__"
    return is_public and is_described and (inspect.isfunction(value) or isinstance(value, kinds))


def entry(name: str, value: Any) -> str:
    """Returns a member's entry: its call, and what it does."""
    head = name if isinstance(value, (property, functools.cached_property)) else signature(name, value)
    return f"```python\n{head}\n```\n\n{text_of(value)}\n"


def signature(name: str, subject: Any) -> str:
    """Returns how something is called; empty for a class of errors, which authors raise with a message."""
    subject = getattr(subject, "__func__", subject)
    if inspect.isclass(subject) and issubclass(subject, BaseException):
        return ""
    try:
        parameters = list(inspect.signature(subject).parameters.values())
    except (TypeError, ValueError):
        return ""
    prefix = "async " if inspect.iscoroutinefunction(subject) else ""
    words = [written(parameter) for parameter in parameters if parameter.name not in ("self", "cls")]
    first_keyword = next((at for at, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
    if first_keyword is not None and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        words.insert(first_keyword - (len(parameters) - len(words)), "*")
    returned = "" if inspect.isclass(subject) else subject.__annotations__.get("return", "")
    end = f" -> {returned}" if isinstance(returned, str) and returned else ""
    if name.endswith(".__getitem__"):
        return f"{name.removesuffix('.__getitem__')}[{', '.join(words)}]{end}"
    one_line = f"{prefix}{name}({', '.join(words)}){end}"
    return one_line if len(one_line) <= 100 else f"{prefix}{name}(\n    " + ",\n    ".join(words) + f",\n){end}"


def written(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        kind = parameter.annotation
        text += f": {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"
    if parameter.default is parameter.empty:
        return text
    default = repr(parameter.default)
    return f"{text} = {'...' if default.startswith('<') else default}"


def text_of(subject: Any) -> str:
    return inspect.cleandoc(subject.__doc__ or "")


if __name__ == "__main__":
    PAGE.write_text(page())
