"""Lists the input of a stored response: the items of the conversation that it answers, page by page."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.dialects.openai.responses.store import Shelf

_REFERENCE = "item_reference"
_PREFIX = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}

Item = dict[str, Any]


class InputItems(msgspec.Struct):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputQuery(msgspec.Struct):
    """Members of the query of a page."""

    after: Annotated[str | None, Meta(description="The id of the item before the page")] = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="`desc`: the newest item first")] = "desc"


def list_items(request_input: str | Sequence[Item], shelf: Shelf) -> tuple[Item, ...]:
    """Returns a request's input, which was found to be valid, as it is listed: each item with an id, a type, a status
    and parts. URLs of images are left out, which may be whole files."""
    if isinstance(request_input, str):
        request_input = ({"role": "user", "content": request_input},)
    return tuple(_item(item, shelf) for item in request_input)


def _item(item: Item, shelf: Shelf) -> Item:
    if item.get("type") == _REFERENCE:
        return shelf.item(item["id"], "input")
    kind = item.get("type") or "message"
    id = item.get("id") or _PREFIX[kind] + secrets.token_hex(24)
    told = {"status": "completed", **item, "id": id, "type": kind}
    if kind == "message":
        told["content"] = _parts(item["content"], "output_text" if item["role"] == "assistant" else "input_text")
    elif kind == "function_call_output" and not isinstance(item["output"], str):
        told["output"] = _parts(item["output"], "input_text")
    return told


def _parts(content: str | Sequence[Item], kind: str) -> list[Item]:
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [{name: value for name, value in part.items() if name != "image_url"} for part in content]


def page(items: Sequence[Item], arguments: Mapping[str, str]) -> InputItems:
    """Returns the page that a query asks for. Raises Refused, which names the parameter."""
    try:
        query = msgspec.convert(dict(arguments), InputQuery, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        param = place.rstrip("`")
        raise Refused(f"{param}: {words}", param) from None
    rows = list(items) if query.order == "asc" else list(reversed(items))
    if query.after is not None:
        rows = rows[_place(rows, query.after) + 1 :]
    data = rows[: query.limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return InputItems("list", data, first, last, len(rows) > len(data))


def _place(rows: Sequence[Item], id: str) -> int:
    for place, item in enumerate(rows):
        if item["id"] == id:
            return place
    raise Refused(f"after: no item '{id[:80]}' is in the input of this response", "after")
