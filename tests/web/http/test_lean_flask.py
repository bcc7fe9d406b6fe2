"""The Flask app that corosrv serves by itself: what it leaves out, and what it still does."""

from collections.abc import Iterator

import pytest
from flask import Response, request, session
from flask.testing import FlaskClient
from werkzeug.routing import Rule

from corosrv.web.http.lean_flask import LeanFlask, LeanMap, current


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    app = LeanFlask("lean")

    @app.get("/models/<path:name>")
    def model(name: str) -> str:
        return f"{name} {dict(session)} {current(request).method}"

    @app.after_request
    def mark(answer: Response) -> Response:
        answer.headers["X-Mark"] = "1"
        return answer

    with app.test_client() as client:
        yield client


def test_a_route_is_found_and_its_hooks_run(client: FlaskClient):
    answer = client.get("/models/tiny")

    assert (answer.text, answer.headers["X-Mark"]) == ("tiny {} GET", "1")
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("host", ["example.com:1", "Exämple", "a b", ""])
def test_the_host_has_no_say_in_routing(client: FlaskClient, host: str):
    assert client.get("/models/tiny", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("//models/tiny", 200), ("/models//tiny", 404)])
def test_two_slashes_in_a_row_redirect_nobody(client: FlaskClient, path: str, status: int):
    answer = client.get("/", headers={"Host": "elsewhere.example"}, environ_overrides={"PATH_INFO": path})

    assert (answer.status_code, "Location" in answer.headers) == (status, False)


def test_a_route_that_is_known_has_the_arguments_of_its_own_path(client: FlaskClient):
    answers = [client.get(f"/models/{name}").text for name in ("tiny", "large", "tiny")]

    assert [answer.split()[0] for answer in answers] == ["tiny", "large", "tiny"]


def test_a_view_that_changes_its_arguments_changes_no_later_ones():
    routes = LeanMap()
    routes.keep("/models/tiny", "GET", Rule("/models/<name>"), {"name": "tiny"})
    first = routes.recall("/models/tiny", "GET")
    assert first is not None

    first[1].clear()

    again = routes.recall("/models/tiny", "GET")
    assert again is not None
    assert again[1] == {"name": "tiny"}


def test_no_more_than_a_thousand_paths_are_known_and_no_long_ones():
    routes, rule = LeanMap(), Rule("/models/<name>")
    paths = [f"/models/{number}" for number in range(3000)]

    for path in [*paths, "/models/" + 300 * "x"]:
        routes.keep(path, "GET", rule, {})

    n_known = sum(routes.recall(path, "GET") is not None for path in paths)
    assert 0 < n_known <= 1024
    assert routes.recall("/models/" + 300 * "x", "GET") is None


def test_a_path_may_have_letters_outside_ascii(client: FlaskClient):
    assert client.get("/models/größe").text.startswith("größe ")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/other", 404), ("POST", "/models/tiny", 405)])
def test_what_is_not_there_is_refused(client: FlaskClient, method: str, path: str, status: int):
    assert client.open(path, method=method).status_code == status
