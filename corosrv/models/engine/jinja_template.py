"""Chat templates in Jinja's language, as models carry them, rendered in the sandbox.

Some templates of models with images read a message as a list of parts and print nothing of a plain text; `adapt` serves
these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from corosrv.base.errors import Refused, TemplateTooCostly
from corosrv.formats.callformats.learn_answer import Rendering
from corosrv.models.engine.sandbox import Sandbox, TemplateLimitReached, TemplateLimits

_ERROR_LENGTH = 1000  # characters


def unusable(reason: str) -> Refused:
    """Makes the error of a template that serves no conversation."""
    return Refused(f"the model's chat template cannot be used: {reason}", None, "invalid_template")


class JinjaTemplate:
    """One template, in a sandbox."""

    def __init__(self, source: str, special: dict[str, str], limits: TemplateLimits) -> None:
        """`special`: what templates know as bos_token and so on. Raises Refused for a text that is no template."""
        self._special = special
        self._tells_date = "date_string" in source or "datetime" in source
        self._environment = Sandbox(limits)
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # anything: the template's text comes from the model's file
            raise unusable(_short(error)) from error
        # For each rendering Jinja copies the names that all templates have, and reads them from a plain dict faster.
        self._template.globals = dict(self._template.globals)

    def render(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        """Renders a conversation. Raises Refused when the template does, and TemplateTooCostly beyond its limits."""
        values = {
            **(_dates() if self._tells_date else {}),
            # Tools in firefunction's template, which nobody fills there either; what tools there are is written in.
            "functions": "",
            "enable_thinking": True,
            "add_generation_prompt": False,
            **self._special,
            **arguments,
            "messages": messages,
        }
        try:
            return self._environment.render_limited(self._template, values)
        except Exception as error:  # anything: it is the template's code that raised it
            kind = TemplateTooCostly if isinstance(error, TemplateLimitReached) else Refused
            raise kind(
                f"the model's chat template refuses this conversation: {_short(error)}", "messages", "invalid_template"
            ) from error


def _short(error: Exception) -> str:
    """Returns the words of an error, which a template chooses, cut to a length for logs and answers."""
    text = str(error)
    return text if len(text) <= _ERROR_LENGTH else f"{text[:_ERROR_LENGTH]}..."


def _dates() -> dict[str, str]:
    """Writes today as llama-server does, for templates that have no strftime_now and ask for these."""
    today = datetime.now()
    return {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}


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
