from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.addresses import embedded, networks, reason_denied

NOT_PUBLIC = networks(
    (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32"),
        *("::/127", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "3fff::/20"),
        *("5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "8000::/1", "4000::/2"),
    )
)
"""IANA's registries of special-purpose addresses, except globally reachable ones, unassigned IPv6 space, and Azure's
own services."""
PUBLIC = networks(("8.8.8.0/24", "93.184.216.0/24", "198.20.0.0/16", "2606:4700::/32", "2a00:1450::/32", "2400::/20"))


def addresses_in(network: IPv4Network | IPv6Network) -> st.SearchStrategy[str]:
    last = network.num_addresses - 1
    number = st.sampled_from([0, last]) | st.integers(0, last)
    return number.map(lambda n: str(network[n]))


def mapped(address: IPv4Address) -> list[str]:
    """Every way to write an IPv4 address as an IPv6 address that leads to it."""
    low = int(address)
    return [
        str(IPv6Address(number))
        for number in (
            0xFFFF << 32 | low,
            low,
            0x64FF9B << 96 | low,
            0x2002 << 112 | low << 80,
            0x2002 << 112 | low << 80 | 0xBEEF,
        )
        if number > 1
    ]


@given(st.sampled_from(NOT_PUBLIC).flatmap(addresses_in))
def test_special_addresses_are_denied(address: str) -> None:
    reason = reason_denied(address)
    assert reason and address in reason and "\n" not in reason


@given(st.sampled_from(PUBLIC).flatmap(addresses_in))
def test_public_addresses_are_allowed(address: str) -> None:
    assert reason_denied(address) is None


@given(st.ip_addresses(v=4))
def test_an_ipv6_form_is_judged_as_its_ipv4_address(address: IPv4Address) -> None:
    denied = reason_denied(str(address)) is not None
    for form in mapped(address):
        assert embedded(ip_address(form)) == address
        assert (reason_denied(form) is not None) == denied, form


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_an_exception_covers_its_network_in_every_form_and_nothing_else(address: IPv4Address, bits: int) -> None:
    network = IPv4Network((int(address) >> (32 - bits) << (32 - bits), bits))
    for form in [str(address), *mapped(address)]:
        assert reason_denied(form, (network,)) is None
    other = IPv4Address(int(address) ^ 1 << 31)
    if other not in network:
        assert reason_denied(str(other), (network,)) == reason_denied(str(other))


@given(st.text() | st.ip_addresses().map(str))
def test_any_text_has_an_answer(text: str) -> None:
    reason = reason_denied(text)
    assert reason is None or (reason and len(reason.splitlines()) == 1)


@pytest.mark.parametrize("text", ["127.1", "0x7f.1", "2130706433", "0177.0.0.1", "[::1]", "localhost", "", "1.1.1.1 "])
def test_other_ways_to_write_an_address_are_not_addresses(text: str) -> None:
    assert reason_denied(text) == f"{text!r} is not an address"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "127.0.0.1 is loopback"),
        ("10.1.2.3", "10.1.2.3 is private"),
        ("169.254.169.254", "169.254.169.254 is link-local"),
        ("224.0.0.1", "224.0.0.1 is multicast"),
        ("100.64.0.1", "100.64.0.1 is not public"),
        ("::ffff:127.0.0.1", "::ffff:7f00:1, which stands for 127.0.0.1, is loopback"),
        ("fe80::1%eth0", "fe80::1%eth0 is link-local"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:4136:e378:8000:63bf:3fff:fdd2 is private"),
    ],
)
def test_the_reason_names_the_kind(address: str, reason: str) -> None:
    assert reason_denied(address) == reason


def test_an_exception_for_ipv6() -> None:
    allowed = networks(["::1/128", "fd00::/8"])
    assert reason_denied("::1", allowed) is None
    assert reason_denied("fd12::1", allowed) is None
    assert reason_denied("127.0.0.1", allowed) == "127.0.0.1 is loopback"


def test_a_network_must_be_one() -> None:
    assert networks(["10.0.0.0/8", "::1"]) == (IPv4Network("10.0.0.0/8"), IPv6Network("::1/128"))
    for value in ("10.0.0.1/8", "example.com", "10.0.0.0/33"):
        with pytest.raises(ValueError) as caught:
            networks(["10.0.0.0/8", value])
        assert repr(value) in str(caught.value) and "write it like 10.0.0.0/8" in str(caught.value)
