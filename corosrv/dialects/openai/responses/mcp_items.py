"""MCP servers in requests of the Responses API: the tools that name them, and the items that tell of their work."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from corosrv.base.errors import McpServerFailed, NotOffered, NotSupported, Refused
from corosrv.contracts.settings import McpServer, is_plain_url
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import NO_ARGUMENTS, Turn, TurnList
from corosrv.dialects.openai.responses import schema
from corosrv.dialects.openai.responses.schema import McpListedTool
from corosrv.formats import bodies
from corosrv.formats.bodies import convert

Item = dict[str, Any]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}")
# The connection's own, and those that the protocol sets.
_OWN_HEADERS = frozenset(
    ("host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding", "upgrade", "te",
     "trailer", "accept", "accept-encoding", "expect", "mcp-session-id", "mcp-protocol-version", "last-event-id")
)  # fmt: skip
_MAX_HEADERS = 32
NOT_APPROVED = "The user did not approve this call."


@dataclass(frozen=True, slots=True)
class McpAccess:
    """The MCP servers that requests may use here, and the seconds that each answer of theirs may take."""

    servers: tuple[McpServer, ...]
    timeout_s: float

    def url(self, tool: schema.Tool, param: str) -> str:
        """Returns the URL that a request's tool names. Raises Refused, and NotOffered where none can be used."""
        if not self.servers:
            words = "no MCP servers are allowed here; the operator lists them in COROSRV_MCP_SERVERS"
            raise NotSupported(f"{param}: {words}", f"{param}.type")
        if importlib.util.find_spec("mcp") is None:
            raise NotOffered("tools of MCP servers need another package on the server: pip install 'corosrv[mcp]'")
        if tool.server_url is None:
            for server in self.servers:
                if server.label == tool.server_label:
                    return server.url
            raise Refused(f"{param}.server_url is required", f"{param}.server_url", "missing_required_parameter")
        if not is_plain_url(tool.server_url) or not any(server.has(tool.server_url) for server in self.servers):
            words = "is none of the MCP servers that the operator of this server allows"
            raise Refused(f"{param}.server_url {words}", f"{param}.server_url", "mcp_server_not_allowed")
        return tool.server_url


@dataclass(frozen=True, slots=True)
class McpToolbox:
    """The tools of one server that a request offers to the model; `headers` are for the server alone."""

    label: str
    url: str = field(repr=False)
    param: str
    tool: schema.Tool = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    def allowed(self, tools: Iterable[McpListedTool]) -> list[McpListedTool]:
        allowed = self.tool.allowed_tools
        if allowed is None:
            return list(tools)
        subset = allowed if isinstance(allowed, schema.ToolFilter) else schema.ToolFilter(allowed)
        return [tool for tool in tools if _has(subset, tool)]

    def is_answered_by(self, tools: Sequence[McpListedTool]) -> bool:
        """Returns whether a list of an earlier response has all tools that the request names."""
        allowed = self.tool.allowed_tools
        names = allowed.tool_names or () if isinstance(allowed, schema.ToolFilter) else allowed or ()
        return {tool.name for tool in tools}.issuperset(names)

    def needs_approval(self, tool: McpListedTool) -> bool:
        """Returns whether somebody has to approve a call before it is made: always, unless the request says more."""
        approval = self.tool.require_approval
        if not isinstance(approval, schema.ApprovalFilter):
            return approval != "never"
        if approval.never is not None and _has(approval.never, tool):
            return False
        return approval.always is None or approval.never is not None or _has(approval.always, tool)


def _has(subset: schema.ToolFilter, tool: McpListedTool) -> bool:
    if subset.tool_names is not None and tool.name not in subset.tool_names:
        return False
    hint = tool.annotations.get("readOnlyHint") if isinstance(tool.annotations, dict) else None
    return subset.read_only is None or subset.read_only == (hint is True)


def read_toolboxes(tools: Iterable[tuple[str, schema.Tool]], access: McpAccess) -> tuple[McpToolbox, ...]:
    """Reads a request's tools of MCP servers, each at its place. Raises Refused, which names the place."""
    boxes: list[McpToolbox] = []
    for param, tool in tools:
        for name in ("connector_id", "tunnel_id"):
            if getattr(tool, name) is not None:
                raise NotSupported(f"{param}.{name} is not offered here: send a server_url", f"{param}.{name}")
        if tool.defer_loading or tool.allowed_callers not in (None, ["direct"]):
            name = "defer_loading" if tool.defer_loading else "allowed_callers"
            raise NotSupported(f"{param}.{name}: the model itself calls tools, which are there at once", param)
        if not tool.server_label:
            raise Refused(f"{param}.server_label is required", f"{param}.server_label", "missing_required_parameter")
        if any(box.label == tool.server_label for box in boxes):
            raise Refused(f"{param}.server_label: another tool has the same label", f"{param}.server_label")
        boxes.append(McpToolbox(tool.server_label, access.url(tool, param), param, tool, _headers(tool, param)))
    return tuple(boxes)


def _headers(tool: schema.Tool, param: str) -> dict[str, str]:
    """Returns the headers for the server. Raises Refused, which shows none of their values."""
    headers = {name.lower(): value for name, value in (tool.headers or {}).items()}
    if tool.authorization is not None:
        if "authorization" in headers:
            raise Refused(f"{param}: authorization is in headers as well: send one of them", f"{param}.authorization")
        headers["authorization"] = f"Bearer {tool.authorization}"
    if len(headers) > _MAX_HEADERS:
        raise Refused(f"{param}.headers: at most {_MAX_HEADERS}", f"{param}.headers")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise Refused(f"{param}.headers: {name[:60]!r} or its value is no HTTP header", f"{param}.headers")
        if name in _OWN_HEADERS:
            raise Refused(f"{param}.headers: {name!r} cannot be set", f"{param}.headers")
    return headers


@dataclass(frozen=True, slots=True)
class McpOutcome:
    """The end of a call: the text for the model, and the error where it failed."""

    text: str
    error: dict[str, Any] | None = None


def redact(tool: schema.Tool) -> schema.Tool:
    """Returns an MCP server's tool as answers show it: without what is for the server alone."""
    url = None if tool.server_url is None else re.sub(r"^(https?://[^/?#]*).*", r"\1/<redacted>", tool.server_url)
    return msgspec.structs.replace(tool, authorization=None, headers=None, server_url=url)


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool of an MCP server as the model may call it."""

    toolbox: McpToolbox
    listed: McpListedTool

    @property
    def needs_approval(self) -> bool:
        return self.toolbox.needs_approval(self.listed)


def plain_name(name: str) -> str:
    """Returns a name of the form that models' tools have."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "_"


def bind(
    lists: Iterable[tuple[McpToolbox, Iterable[McpListedTool]]], other_names: Iterable[str]
) -> dict[str, BoundTool]:
    """Returns the tools by the names under which the model calls them, each of which only one has."""
    bound: dict[str, BoundTool] = {}
    names = set(other_names)
    for toolbox, listed in lists:
        for tool in toolbox.allowed(listed):
            name = plain_name(tool.name)
            if name in names:
                name = plain_name(f"{toolbox.label}__{tool.name}")
            number = 1
            while name in names:
                number += 1
                name = f"{name[:58]}_{number}"
            names.add(name)
            bound[name] = BoundTool(toolbox, tool)
    return bound


def functions(bound: Mapping[str, BoundTool]) -> Iterator[dict[str, Any]]:
    """Yields the functions that the model is offered."""
    for name, tool in bound.items():
        yield conversation.tool(name, tool.listed.description, tool.listed.input_schema or NO_ARGUMENTS)


def check_list(toolbox: McpToolbox, tools: Sequence[McpListedTool]) -> None:
    """Raises McpServerFailed for tools that are too large or too deep to be looked at."""
    try:
        bodies.check(msgspec.json.encode(tools))
    except (Refused, ValueError, RecursionError):
        raise server_failed(toolbox, "its tools are too large or too deep") from None


def server_failed(toolbox: McpToolbox, reason: str) -> McpServerFailed:
    return McpServerFailed(f"{toolbox.param}: the tools of '{toolbox.label}' cannot be used: {reason}", toolbox.param)


# Items of the input.


def _list(item: Item, param: str, to: TurnList, _: Any) -> None:
    convert(item, schema.McpListItem, param)


def _call(item: Item, param: str, to: TurnList, _: Any) -> None:
    call = convert(item, schema.McpCallItem, param)
    output = call.output if call.output is not None else msgspec.json.encode(call.error).decode()
    turn = find_result(to.all, call.approval_request_id)
    if turn is not None:
        turn["content"] = output
        return
    id = call.approval_request_id or call.id
    if not to.has_call(id):
        id = call.id
        to.call(id, plain_name(call.name), conversation.arguments(call.arguments, f"{param}.arguments"))
    to.result(id, output, f"{param}.id")


def _approval_request(item: Item, param: str, to: TurnList, _: Any) -> None:
    call = convert(item, schema.McpCallItem, param)
    to.call(call.id, plain_name(call.name), conversation.arguments(call.arguments, f"{param}.arguments"))


def _approval_response(item: Item, param: str, to: TurnList, _: Any) -> None:
    approval = convert(item, schema.ApprovalItem, param)
    place = f"{param}.approval_request_id"
    if find_result(to.all, approval.approval_request_id) is not None:
        raise Refused(f"{place}: this request was answered before", place)
    words = NOT_APPROVED if approval.reason is None else f"{NOT_APPROVED} {approval.reason}"
    # The result of a call that was approved comes when it has been made.
    to.result(approval.approval_request_id, "" if approval.approve else words, place)


ITEMS: dict[str, Callable[[Item, str, TurnList, Any], None]] = {
    "mcp_list_tools": _list,
    "mcp_call": _call,
    "mcp_approval_request": _approval_request,
    "mcp_approval_response": _approval_response,
}
PREFIXES = {  # of their ids
    "mcp_list_tools": "mcpl", "mcp_call": "mcp", "mcp_approval_request": "mcpr", "mcp_approval_response": "mcpa"
}  # fmt: skip


def find_result(turns: Iterable[Turn], call_id: str | None) -> Turn | None:
    return next((turn for turn in turns if turn.get("tool_call_id") == call_id), None)


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call that somebody has approved and that was not made yet; `turn`: where its result belongs."""

    id: str
    toolbox: McpToolbox
    name: str
    arguments: str
    turn: Turn


def known_lists(items: Iterable[Item], boxes: Iterable[McpToolbox]) -> dict[str, list[McpListedTool]]:
    """Returns the tools by label that earlier responses listed, of those servers that need not be asked again."""
    listed = {
        item["server_label"]: msgspec.convert(item["tools"], list[McpListedTool])
        for item in items
        if item.get("type") == "mcp_list_tools" and not item.get("error")
    }
    return {
        box.label: listed[box.label] for box in boxes if box.label in listed and box.is_answered_by(listed[box.label])
    }


def approved_calls(items: Sequence[Item], turns: Sequence[Turn], boxes: Iterable[McpToolbox]) -> list[ApprovedCall]:
    """Returns the calls to make before the model goes on. Raises Refused where one cannot be made."""
    by_label = {box.label: box for box in boxes}
    requests = {item["id"]: item for item in items if item.get("type") == "mcp_approval_request"}
    made = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    calls = []
    for item in items:
        if item.get("type") != "mcp_approval_response" or not item["approve"]:
            continue
        id = item["approval_request_id"]
        request, turn = requests.get(id), find_result(turns, id)
        if id in made or turn is None:
            continue
        if request is None:
            _refuse(f"'{id[:80]}' is no approval request")
        if request["server_label"] not in by_label:
            _refuse(f"tools has no MCP server of the label '{request['server_label'][:64]}', whose call is approved")
        box = by_label[request["server_label"]]
        calls.append(ApprovedCall(id, box, request["name"], request["arguments"], turn))
    return calls


def _refuse(words: str) -> NoReturn:
    raise Refused(f"approval_request_id: {words}", "input")
