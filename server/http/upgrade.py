"""Requests that offer another protocol (h2c, websocket), as if they did not: a server may ignore an Upgrade.

The parser takes what follows the headers of such a request for the other protocol, its body too. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_OFFERS = frozenset({b"upgrade", b"http2-settings"})


def head_without_upgrade(
    method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Return a request line and headers to be parsed once more, with nothing in them about an upgrade.

    headers: names in lower case. Method, URL and headers have been parsed, so that none holds a line break.
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    lines += [b"%s: %s" % header for header in _kept(headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _OFFERS)
            if value:
                yield name, value
        elif name not in _OFFERS:
            yield name, value
