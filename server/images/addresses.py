"""Which addresses the server may fetch from at a client's wish: the internet's, not this network's. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an IP address, as text, belongs to the internet at large.

    Private, loopback, link-local (where cloud machines' metadata lies), multicast and reserved addresses do
    not; neither does an IPv6 address that wraps such an IPv4 address.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    return _public(ip)


def _public(ip: IPv4Address | IPv6Address) -> bool:
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return _public(ip.ipv4_mapped)
        if ip in _NAT64:
            return _public(IPv4Address(int(ip) & 0xFFFFFFFF))
        tunnelled = (ip.sixtofour, *(ip.teredo or ()))
        if ip.is_site_local or not all(_public(inner) for inner in tunnelled if inner is not None):
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)
