"""Serves templates of models with images that read a message as a list of parts, and print nothing of a plain text."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.formats.callformats.probes import Rendering

_WORD = "nedcontent"  # that no template writes by itself


def reads_parts(render: Rendering) -> bool:
    """Returns whether a template wants lists of parts for contents, by tiny conversations. Computes; never raises."""
    try:
        return not _shows(render, _WORD) and _shows(render, _parts(_WORD))
    except TemplateTooCostly:  # it would be so each time
        return False


def adapt(render: Rendering, takes_parts: bool) -> Rendering:
    """Returns a rendering of conversations whose contents are texts. `takes_parts`: see reads_parts."""
    if not takes_parts:
        return render

    def render_parts(messages: list[dict[str, Any]], **arguments: Any) -> str:
        return render([_with_parts(message) for message in messages], **arguments)

    return render_parts


def _shows(render: Rendering, content: Any) -> bool:
    try:
        return _WORD in render([{"role": "user", "content": content}])
    except TemplateTooCostly:
        raise
    except Refused:
        return False


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": _parts(content)} if isinstance(content, str) else message


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
