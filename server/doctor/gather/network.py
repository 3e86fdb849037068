"""Where the server listens by its settings, who is there now, and whether others reach it; the keys."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import httpx2
import psutil

from server.addresses import local_url, reachable, url
from server.doctor.facts import Keys, Network, PortState
from server.http.keyring import KeyRing
from server.settings import Settings, SettingsError

_ANSWER_S = 2.0


def network(settings: Settings) -> Network:
    """Ask the port of the settings who is there, and the addresses of this machine whether they answer."""
    state, holder, refused = _state(settings)
    urls = {}
    if settings.port and settings.reachable:
        urls = {address: state == "rkserve" and _is_rkserve(address) for address in _lan_urls(settings)}
    return Network(
        host=settings.host,
        port=settings.port,
        reachable=settings.reachable,
        open_lan=settings.open_lan,
        state=state,
        holder=holder,
        refused=refused,
        urls=urls,
    )


def keys(settings: Settings) -> Keys:
    """Count the keys in the file that the settings name."""
    path = settings.api_keys_file
    assert path is not None  # it has a default
    named = settings.keys_wanted
    command = "rkserve key add NAME" + (f" --file {path}" if named else "")
    denied = path.exists() and not os.access(path, os.R_OK)
    if denied:
        return Keys(path, named, denied=True, command=command)
    try:
        ring = KeyRing(path)
    except SettingsError as error:
        return Keys(path, named, problems=error.problems, command=command)
    return Keys(path, named, names=ring.count, command=command)


def _state(settings: Settings) -> tuple[PortState, str | None, str | None]:
    """Return who is at the port, the program's name if it is another, and why nobody can be."""
    if settings.port == 0:
        return "free", None, None
    if _is_rkserve(local_url(settings.host, settings.port)):
        return "rkserve", None, None
    try:
        for family, address in _addresses(settings):
            socket.create_server(address, family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "other", _holder(settings.port), None
        # Its own text names the address once more; a name that is not known has no number of ours.
        known = error.errno is not None and not isinstance(error, socket.gaierror)
        return "refused", None, os.strerror(error.errno or 0) if known else str(error.strerror or error)
    return "free", None, None


def _addresses(settings: Settings) -> Iterator[tuple[socket.AddressFamily, tuple[str, int]]]:
    found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((info[0], info[4]) for info in found):
        yield family, (str(address[0]), settings.port)


def _is_rkserve(address: str) -> bool:
    try:
        answer = httpx2.get(f"{address}/", timeout=_ANSWER_S, trust_env=False)
        said = answer.json()
    except (httpx2.HTTPError, ValueError):
        return False
    return isinstance(said, dict) and said.get("name") == "rkserve"


def _lan_urls(settings: Settings) -> list[str]:
    if settings.host not in ("0.0.0.0", "::"):
        return [url(settings.host, settings.port)]
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    interfaces = {
        name: [(address.family, address.address) for address in addresses]
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
    }
    return [url(str(one), settings.port) for one in reachable(interfaces) if one.version == 4]


def _holder(port: int) -> str | None:
    """Return the name of the program that listens at a port, where this user may know it."""
    try:
        for connection in psutil.net_connections("tcp"):
            at = connection.laddr[1] if connection.laddr else None
            if connection.status == psutil.CONN_LISTEN and at == port and connection.pid:
                return str(psutil.Process(connection.pid).name())
    except (psutil.Error, OSError):
        pass
    return None
