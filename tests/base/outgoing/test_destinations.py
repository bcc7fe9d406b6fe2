"""Where requests may go that clients ask for."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from corosrv.base.errors import DestinationRefused
from corosrv.base.outgoing import Destinations

LINK_LOCAL = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "fd00:ec2::254",
]
LOOPBACK = ["127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
OTHERS = ["10.0.0.1", "192.168.1.1", "8.8.8.8", "fd00::1", "2001:db8::1"]


def fault(address: str, *names: str, host: str = "host", to_loopback: bool = False) -> str:
    return Destinations(names).fault(host, ipaddress.ip_address(address), to_loopback)


@pytest.mark.parametrize("address", LINK_LOCAL)
def test_no_request_goes_to_a_link_local_address(address: str):
    assert "link-local" in fault(address, to_loopback=True)
    assert "link-local" in fault(address, address.partition("%")[0], "host", to_loopback=True)


@pytest.mark.parametrize("address", LOOPBACK)
def test_this_machine_is_for_clients_on_it(address: str):
    assert "this machine" in fault(address)
    assert fault(address, to_loopback=True) == ""


@pytest.mark.parametrize("address", OTHERS)
def test_other_addresses_are_allowed(address: str):
    assert fault(address) == ""


@pytest.mark.parametrize(
    ("host", "address", "is_allowed"),
    [
        ("hooks.example.com", "8.8.8.8", True),
        ("HOOKS.example.com.", "8.8.8.8", True),
        ("a.b.example.org", "8.8.8.8", True),
        ("example.org", "8.8.8.8", False),
        ("evilexample.org", "8.8.8.8", False),
        ("anything", "10.1.2.3", True),
        ("anything", "10.2.0.1", False),
        ("anything", "2001:db8::5", True),
        ("anything", "8.8.8.8", False),
    ],
)
def test_a_list_narrows(host: str, address: str, is_allowed: bool):
    names = ("hooks.example.com", "*.example.org", "10.1.0.0/16", "2001:db8::5")

    assert (fault(address, *names, host=host) == "") is is_allowed


def test_a_list_does_not_open_this_machine():
    assert fault("127.0.0.1", "127.0.0.0/8", "localhost", host="localhost")


@pytest.mark.parametrize("name", ["", "a/b", "10.0.0.0/99", "http://a", "a:80", "*"])
def test_what_is_no_host_is_refused(name: str):
    with pytest.raises(ValueError, match="neither a host name"):
        Destinations([name])


def test_a_name_is_looked_up_and_its_allowed_addresses_are_left(monkeypatch: pytest.MonkeyPatch):
    found = ["169.254.1.1", "10.0.0.1", "127.0.0.1", "10.0.0.1", "10.0.0.2"]

    def look_up(host: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    assert Destinations().look_up("host", 80, to_loopback=False) == ["10.0.0.1", "10.0.0.2"]
    del found[1:]
    with pytest.raises(DestinationRefused, match="link-local"):
        Destinations().look_up("host", 80, to_loopback=True)


@pytest.mark.parametrize(
    ("url", "is_refused"), [("http://169.254.169.254/x", True), ("http://[fe80::1]/", True), ("http://a/", False)]
)
def test_addresses_in_urls_are_known_at_once(url: str, is_refused: bool):
    assert bool(Destinations().fault_of_url(url, to_loopback=True)) is is_refused
