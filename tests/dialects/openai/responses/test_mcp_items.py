"""MCP servers in requests: which are allowed, which tools they give the model, and which calls need approval."""

from __future__ import annotations

import importlib.util

import msgspec
import pytest

from corosrv.base.errors import NotOffered, Refused, SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import McpServer
from corosrv.dialects.openai.responses import mcp_items, schema
from corosrv.dialects.openai.responses.mcp_client import McpFault, McpLoop, McpSession
from corosrv.dialects.openai.responses.mcp_items import McpAccess, McpToolbox, bind
from corosrv.dialects.openai.responses.schema import McpListedTool
from tests.support.waiting import eventually

URL = "https://mcp.example.com/a"
READS = McpListedTool("reads", {}, None, {"readOnlyHint": True})
WRITES = McpListedTool("writes", {})


def tool(**members: object) -> schema.Tool:
    return msgspec.convert({"type": "mcp", "server_label": "one", "server_url": URL, **members}, schema.Tool)


def toolbox(label: str = "one", **members: object) -> McpToolbox:
    return McpToolbox(label, URL, "tools[0]", tool(**members), {})


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        (URL, True),
        (URL + "/b?c=d", True),
        ("https://MCP.example.com:443/a", True),
        (URL + "b", False),
        ("https://mcp.example.com/", False),
        ("http://mcp.example.com/a", False),
        ("https://mcp.example.com:8443/a", False),
        ("https://mcp.example.com.evil.org/a", False),
        ("https://mcp.example.com@evil.org/a", False),
        ("https://evil.org\\@mcp.example.com/a", False),
        ("https://evil.org#@mcp.example.com/a", False),
        (URL + "/%2e%2e/b", False),
        (URL + "/..%2fb", False),
        (URL + "/%5c../b", False),
        (URL + "\n", False),
        ("", False),
    ],
)
def test_a_url_is_allowed_where_it_is_below_one_of_the_operator_s(url: str, is_allowed: bool) -> None:
    access = McpAccess((McpServer("https://other.example.com/"), McpServer(URL)), 1.0)

    if is_allowed:
        assert access.url(tool(server_url=url), "tools[0]") == url
    else:
        with pytest.raises(Refused, match="operator") as refused:
            access.url(tool(server_url=url), "tools[0]")
        assert refused.value.code == "mcp_server_not_allowed"


def test_without_the_package_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(NotOffered, match=r"pip install 'corosrv\[mcp\]'"):
        McpAccess((McpServer(URL),), 1.0).url(tool(), "tools[0]")


@pytest.mark.parametrize(
    "value", ["mcp.example.com", "https://u:p@x/mcp", "a=https://x/,a=https://y/", "https://x/../y"]
)
def test_a_server_that_is_none_stops_the_start(value: str) -> None:
    with pytest.raises(SettingsError, match="COROSRV_MCP_SERVERS"):
        settings.load({"mcp_servers": value}, environ={})


@pytest.mark.parametrize(
    ("approval", "for_reads", "for_writes"),
    [
        (None, True, True),
        ("always", True, True),
        ("never", False, False),
        ({"never": {"tool_names": ["reads"]}}, False, True),
        ({"never": {"read_only": True}}, False, True),
        ({"always": {"tool_names": ["writes"]}}, False, True),
        ({"always": {"read_only": False}, "never": {"tool_names": ["reads", "writes"]}}, False, False),
    ],
)
def test_a_call_needs_approval_unless_the_request_says_more(
    approval: object, for_reads: bool, for_writes: bool
) -> None:
    box = toolbox(require_approval=approval)

    assert [box.needs_approval(READS), box.needs_approval(WRITES)] == [for_reads, for_writes]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, ["reads", "writes"]),
        (["writes"], ["writes"]),
        ({"read_only": True}, ["reads"]),
        ({"read_only": True, "tool_names": ["writes"]}, []),
    ],
)
def test_the_model_is_offered_the_tools_that_are_allowed(allowed: object, names: list[str]) -> None:
    box = toolbox(allowed_tools=allowed)

    assert [tool.name for tool in box.allowed([READS, WRITES])] == names


def test_each_tool_has_a_name_of_its_own_that_models_can_write() -> None:
    odd = [McpListedTool(name, {}) for name in ("a/b", "a.b", "a b", "", "x" * 100, "own")]

    bound = bind([(toolbox("one"), odd), (toolbox("two"), odd)], ["own"])

    assert len(bound) == 12
    assert all(mcp_items.plain_name(name) == name for name in bound)
    assert "own" not in bound


def test_secrets_are_in_no_answer_and_in_no_text_of_an_object() -> None:
    given = tool(authorization="s3cret", headers={"X-Key": "s3cret"}, server_url=URL + "?key=s3cret")
    (box,) = mcp_items.read_toolboxes([("tools[0]", given)], McpAccess((McpServer(URL),), 1.0))

    assert box.headers == {"x-key": "s3cret", "authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(box)
    assert "s3cret" not in str(msgspec.to_builtins(mcp_items.redact(given)))


def test_who_asks_after_a_session_has_failed_hears_why() -> None:
    session = McpSession(McpLoop(), "http://127.0.0.1:1/mcp", {}, 20)
    eventually(lambda: session.is_over, 20, "nobody is there")

    ask = session.list_tools()

    with pytest.raises(McpFault, match="cannot be reached"):
        ask.wait(20)
    ask.close()
