"""Which names a server without keys may be called by."""

from __future__ import annotations

import socket

import pytest
from flask import Request
from werkzeug.test import EnvironBuilder

from corosrv.base.errors import Forbidden
from corosrv.web.http.access import Hosts


def may_be_called(hosts: Hosts, host: str, **environ: object) -> bool:
    """Asks over a loopback address unless `environ` has another."""
    defaults = {"HTTP_HOST": host, "SERVER_NAME": "127.0.0.1"}
    try:
        hosts.check(Request({**EnvironBuilder().get_environ(), **defaults, **environ}))
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "LOCALHOST:8080",
        "localhost.",
        "app.localhost:8080",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8080",
        "0.0.0.0:8080",
        "192.168.1.7:8080",
        "[fd00::7]",
        "corosrv:8080",
        "box.local",
        "host.docker.internal:8080",
    ],
)
def test_local_names_and_addresses_pass(host):
    assert may_be_called(Hosts(()), host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "8.8.8.8:8080",
        "[2001:4860:4860::8888]:8080",
        "user@localhost.example",
        "localhost:8080:evil.example",
        "[::1",
        "evil.example/localhost",
    ],
)
def test_every_other_name_is_refused(host):
    assert not may_be_called(Hosts(()), host)


def test_a_client_without_a_host_passes():
    builder = EnvironBuilder().get_environ()
    del builder["HTTP_HOST"]

    Hosts(()).check(Request(builder))


@pytest.mark.parametrize("address", ["192.168.1.7", "8.8.8.8", "0.0.0.0", "unix"])
def test_a_server_that_was_opened_to_others_has_whatever_name_they_gave_it(address):
    assert may_be_called(Hosts(()), "gpu.default.svc", SERVER_NAME=address)


def test_named_hosts_are_checked_on_every_address():
    assert not may_be_called(Hosts(("api.example",)), "evil.example", SERVER_NAME="192.168.1.7")


@pytest.mark.parametrize(("address", "is_loopback"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_the_connection_says_which_address_was_called(address, is_loopback):
    with socket.create_server((address, 0)) as listener:
        called = may_be_called(Hosts(()), "evil.example", **{"gunicorn.socket": listener, "SERVER_NAME": ""})

    assert called != is_loopback


@pytest.mark.parametrize(
    ("names", "host", "is_allowed"),
    [
        (("api.example",), "api.example:443", True),
        (("API.example",), "api.EXAMPLE", True),
        (("api.example",), "api.example.", True),
        (("api.example",), "other.example", False),
        (("api.example",), "x.api.example", False),
        (("*.example",), "x.api.example", True),
        (("*.example",), "badexample", True),  # no dot in it: a local name
        (("*.api.example",), "badapi.example", False),
        (("8.8.8.8",), "8.8.8.8", True),
        (("*",), "any.example", True),
    ],
)
def test_the_operator_allows_others(names, host, is_allowed):
    assert may_be_called(Hosts(names), host) == is_allowed


def test_a_refusal_names_host_and_setting():
    asked = Request({**EnvironBuilder().get_environ(), "HTTP_HOST": "evil.example", "SERVER_NAME": "127.0.0.1"})

    with pytest.raises(Forbidden, match=r"evil\.example.*COROSRV_ALLOWED_HOSTS") as refused:
        Hosts(()).check(asked)

    assert refused.value.code == "host_not_allowed"
