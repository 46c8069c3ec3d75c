"""Which addresses a URL from outside may lead to.

A host that an outsider chose must not lead to this machine, its network or a cloud's metadata service. Host names say
nothing: call `reason_denied` with the address that a socket is about to connect to, for each connection.

Only the standard library is imported, since the runner's environment has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Networks = tuple[IPv4Network | IPv6Network, ...]

_V4_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")

_DENIED: Networks = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's own services on each of its machines, at a public address
        "192.0.0.0/24",  # IETF protocol assignments: Python 3.11 knows parts of it
        "192.88.99.0/24",  # relays of 6to4 (RFC 7526)
        "2001::/23",  # IETF protocol assignments, Teredo among them
        "3fff::/20",  # documentation (RFC 9637)
    )
)
"""Networks that `is_global` of Python 3.11 takes for public, beside those outside 2000::/3 (NAT64 for local use, SRv6,
site-local) and embedded IPv4 addresses. Source: IANA's registries of special-purpose addresses."""


def networks(values: Iterable[str]) -> Networks:
    """Networks in CIDR notation. Raises ValueError, in one line, for the first invalid one."""
    found: list[IPv4Network | IPv6Network] = []
    for value in values:
        try:
            found.append(ip_network(value))
        except ValueError as error:
            raise ValueError(f"{value!r} is not a network ({error}); write it like 10.0.0.0/8 or fd00::/8") from None
    return tuple(found)


def reason_denied(address: str, allowed: Networks = ()) -> str | None:
    """Why a URL from outside may not lead to `address`; None if it is public or in `allowed`.

    An IPv6 address that embeds an IPv4 address is judged as that IPv4 address, so an allowed network covers both."""
    try:
        given = ip_address(address)
    except ValueError:
        return f"{address[:50]!r} is not an address"
    meant = embedded(given) or given
    if any(form.version == network.version and form in network for network in allowed for form in (given, meant)):
        return None
    if _is_public(meant):
        return None
    embedding = "" if meant is given else f", which stands for {meant},"
    return f"{given}{embedding} is {_kind(meant)}"


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped and compatible (RFC 4291, 2.5.5), 6to4 (RFC 3056),
    NAT64 (RFC 6052). None for Teredo and for NAT64 of local use, which are denied whatever they embed: the former is a
    client's tunnel, the latter has no fixed place for the IPv4 address (RFC 8215)."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped or address.sixtofour:
        return address.ipv4_mapped or address.sixtofour
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address.version == network.version and address in network for network in _DENIED)


def _kind(address: Address) -> str:
    for kind in ("unspecified", "loopback", "link_local", "multicast", "private", "reserved"):
        if getattr(address, f"is_{kind}"):
            return kind.replace("_", "-")
    return "not public"
