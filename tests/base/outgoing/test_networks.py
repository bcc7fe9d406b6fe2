"""Kinds of addresses, the same with every version of Python."""

from __future__ import annotations

import ipaddress

import pytest

from corosrv.base.outgoing import AddressKind, Destinations, kind_of

ADDRESSES = {
    AddressKind.PUBLIC: [
        "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "169.253.255.255", "172.32.0.1", "191.255.255.255",
        "192.0.1.1", "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.15", "168.63.129.17",
        "2606:4700::1111", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
    ],
    AddressKind.PRIVATE: [
        "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.1",
        "192.0.2.1", "192.88.99.1", "198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.1",
        "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2002:c0a8:101::1", "::8.8.8.8", "::10.0.0.1",
        "2001:db8::1", "2001:2::1", "100::1", "100:0:0:1::1", "3fff::1", "5f00::1", "fc00::1", "fd00::1", "4000::1",
        "8000::1",
        "2001:0:808:808:0:0:f7f7:f7f7",  # Teredo of two public addresses
    ],
    AddressKind.THIS_MACHINE: [
        "0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1",
        "::ffff:0.0.0.0", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:0:7f00:1:0:0:f7f7:f7f7", "2001:0:808:808:0:0:80ff:fffe",  # Teredo: its server, its client
    ],
    AddressKind.LINK_LOCAL: [
        "169.254.0.0", "169.254.169.254", "169.254.255.255", "::169.254.169.254", "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "2001:0:a9fe:a9fe:0:0:f7f7:f7f7", "fe80::1", "fe80::1%1", "febf::1",
        "fd00:ec2::254", "fd20:ce::254", "fd00:42::42",
    ],
    AddressKind.RESERVED: [
        "192.0.0.0", "192.0.0.192", "192.0.0.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "168.63.129.16", "100.100.100.200", "64:ff9b:1::", "64:ff9b:1::7f00:1", "64:ff9b:1:ffff::808:808", "fec0::1",
        "feff::1", "ff02::1", "::ffff:192.0.0.192", "::192.0.0.192", "64:ff9b::a83f:8110", "2002:c000:c0::",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("address", "kind"), [(text, kind) for kind, texts in ADDRESSES.items() for text in texts])
def test_an_address_is_of_the_most_guarded_kind_that_is_packed_into_it(address: str, kind: AddressKind):
    assert kind_of(ipaddress.ip_address(address)) is kind


@pytest.mark.parametrize("address", [text for kind, texts in ADDRESSES.items() for text in texts if kind])
def test_a_name_that_is_allowed_leads_to_public_addresses_only(address: str):
    destinations = Destinations(["pictures.test"], private_by_name=False)

    assert destinations.fault("pictures.test", ipaddress.ip_address(address), to_loopback=False)


@pytest.mark.parametrize("address", ADDRESSES[AddressKind.RESERVED] + ADDRESSES[AddressKind.LINK_LOCAL])
def test_no_list_opens_what_is_of_nobody(address: str):
    destinations = Destinations(["0.0.0.0/0", "::/0", "a.test"])

    assert "where no request goes" in destinations.fault("a.test", ipaddress.ip_address(address), to_loopback=True)
