"""Under which addresses a listening socket is reached: from this machine, and from others. Opens nothing."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence

import psutil

# Bridges and their ends that lead to containers and virtual machines on this machine only.
INTERNAL = ("docker", "br-", "veth", "virbr", "cni", "podman", "lxc")


def url_of(listening: socket.socket) -> str:
    """Return the address to open in a client on this machine."""
    return local_url(*listening.getsockname()[:2])


def local_url(host: str, port: int) -> str:
    """Return the address at which this machine reaches a server that listens on this host and port."""
    return url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)


def network_urls(sockets: Sequence[socket.socket]) -> list[str]:
    """Return the addresses for clients on other machines, IPv4 first; none for a server of the loopback."""
    found: dict[str, None] = {}
    for listening in sockets:
        host, port = listening.getsockname()[:2]
        bound = ipaddress.ip_address(host)
        if bound.is_unspecified:
            both = bound.version == 6 and not listening.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            versions = {4, 6} if both else {bound.version}
            found |= {
                url(str(one), port): None for one in reachable(_interfaces()) if one.version in versions
            }
        elif not bound.is_loopback:
            found[url(host, port)] = None
    return sorted(found, key=lambda address: "[" in address)


def _interfaces() -> dict[str, list[tuple[int, str]]]:
    """Return the addresses of the interfaces that are up; of all, or none, where the system does not tell.

    A sandbox or an emulator may refuse these calls, and a server that serves must not end for a line of text.
    """
    try:
        known = psutil.net_if_addrs()
    except OSError:
        return {}
    try:
        down = {name for name, state in psutil.net_if_stats().items() if not state.isup}
    except OSError:
        down = set()
    return {
        name: [(address.family, address.address) for address in addresses]
        for name, addresses in known.items()
        if name not in down
    }


def reachable(
    interfaces: Mapping[str, Sequence[tuple[int, str]]],
) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Yield the addresses at which other machines may find this one.

    interfaces: family and address of each of an interface's addresses, by the interface's name.
    """
    for name, addresses in interfaces.items():
        if name.startswith(INTERNAL):
            continue
        for family, address in addresses:
            if family not in (socket.AF_INET, socket.AF_INET6):
                continue
            one = ipaddress.ip_address(address)
            if not one.is_loopback and not one.is_link_local:
                yield one


def url(host: str, port: int) -> str:
    """Return the address of a server; an IPv6 host goes into brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
