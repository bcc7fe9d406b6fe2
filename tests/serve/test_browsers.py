"""Pages of other web sites in a real browser can do what the server allows, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.serve.server import Server, Servers
from tests.serve.wire import CHAT, chat
from tests.support.browser import Page, browser

# The fields that OpenAI's client for JavaScript sends with every request.
HEADERS = {
    "Authorization": "Bearer k",
    "Content-Type": "application/json",
    "X-Stainless-Arch": "x64",
    "X-Stainless-Lang": "js",
    "X-Stainless-OS": "Linux",
    "X-Stainless-Package-Version": "7.0.0",
    "X-Stainless-Retry-Count": "0",
    "X-Stainless-Runtime": "browser:chrome",
    "X-Stainless-Runtime-Version": "150.0.0",
    "X-Stainless-Timeout": "600",
}


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Server:
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(api_keys="k")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def fetched(page: Page, url: str, script: str = "answer.status", **options: object) -> object:
    """Returns what `script` makes of the `answer` to a page's fetch; "blocked" where its browser gives it none."""
    return page.run(
        f"fetch({json.dumps(url)}, {json.dumps(options)}).then(async (answer) => {script}).catch(() => 'blocked')"
    )


def open_page(page: Page, server: Server, host: str, path: str = "/health") -> None:
    """Opens something of this origin that everybody may read. The policy of /docs forbids it calls elsewhere."""
    url = f"http://{host}:{server.port}{path}"
    page.open(url)
    page.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")


def test_a_page_of_any_site_with_a_key_may_call_as_openais_client_does(chromium: Page, guarded: Server) -> None:
    open_page(chromium, guarded, "page.example")
    url = f"http://127.0.0.1:{guarded.port}{CHAT}"
    body = json.dumps(chat(max_tokens=3))

    status = fetched(chromium, url, method="POST", headers=HEADERS, body=body)
    request_id = fetched(chromium, url, "answer.headers.get('x-request-id')", method="POST", headers=HEADERS, body=body)
    gone = fetched(chromium, f"http://127.0.0.1:{guarded.port}/v1/responses/resp_1", method="DELETE", headers=HEADERS)
    cookies = fetched(chromium, url, method="POST", headers=HEADERS, body=body, credentials="include")

    assert status == 200
    assert str(request_id).startswith("req_")
    assert gone == 404
    assert cookies == "blocked"


def test_without_keys_a_page_of_another_site_can_start_nothing(chromium: Page, server: Server, guarded: Server) -> None:
    open_page(chromium, guarded, "page.example")
    before = server.metric("prompt_tokens_total")
    url = f"http://127.0.0.1:{server.port}{CHAT}"
    body = json.dumps(chat(max_tokens=3))

    asked = fetched(chromium, url, method="POST", headers=HEADERS, body=body)
    unasked = fetched(chromium, url, "answer.type", method="POST", mode="no-cors", body=body)

    assert (asked, unasked) == ("blocked", "opaque")
    assert server.metric("prompt_tokens_total") == before


def test_a_site_whose_name_is_rebound_to_this_machine_reads_nothing(chromium: Page, server: Server) -> None:
    open_page(chromium, server, "rebound.example")

    assert fetched(chromium, "/v1/models") == 403
    assert fetched(chromium, CHAT, method="POST", body=json.dumps(chat(max_tokens=3))) == 403


def test_the_servers_own_page_may_call_it(chromium: Page, server: Server) -> None:
    open_page(chromium, server, "localhost", "/docs")

    assert fetched(chromium, CHAT, method="POST", body=json.dumps(chat(max_tokens=3))) == 200
