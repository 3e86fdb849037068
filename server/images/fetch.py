"""Fetches an image from the internet at a client's wish, and from nowhere else.

A name is resolved once, and the address that was checked is the one that is connected to: a name server that
answers differently the second time changes nothing. Redirects go the same way. No proxy, no cookies, no keys.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import httpx2

from server.images.addresses import is_public

MOST_REDIRECTS = 3
SILENCE_S = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Charge = Callable[[int], None]
"""Takes that many bytes of a budget. Raises ServerBusy where there are none left."""


class FetchError(Exception):
    """The message goes on after "...content.0 "."""


async def system_addresses(host: str, port: int) -> Sequence[str]:
    """Return the IP addresses of a host as the system's resolver gives them. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Fetcher:
    """Fetches files. resolve and allowed (of an address) are for tests."""

    def __init__(
        self, resolve: Resolve = system_addresses, allowed: Callable[[str], bool] = is_public
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, limit: int, charge: Charge = lambda size: None) -> bytes:
        """Return what stands at an address, at most `limit` bytes. No limit of time.

        Each piece is charged as it comes. Raises FetchError, and what charge raises.
        """
        try:
            tls = await self._trusted()
            async with httpx2.AsyncClient(trust_env=False, timeout=SILENCE_S, verify=tls) as client:
                for _ in range(MOST_REDIRECTS + 1):
                    client.cookies.clear()  # what one site sets, the next one is not told
                    request = await self._request(client, url)
                    response = await client.send(request, stream=True)
                    try:
                        if response.status_code not in _REDIRECTS:
                            return await _body(response, limit, charge)
                        url = _joined(url, response.headers.get("location", ""))
                    finally:
                        await response.aclose()
        except httpx2.TimeoutException:
            raise FetchError("could not be fetched: its server did not answer in time") from None
        except httpx2.HTTPError as error:
            raise FetchError(f"could not be fetched: {type(error).__name__}") from None
        raise FetchError(f"could not be fetched: it is redirected more than {MOST_REDIRECTS} times")

    async def _trusted(self) -> ssl.SSLContext:
        """Return what certificates are checked with: read once, which would hold up the streams of others."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context, trust_env=False)
        return self._tls

    async def _request(self, client: httpx2.AsyncClient, url: str) -> httpx2.Request:
        target = _parsed(url)
        host = target.raw_host.decode("ascii").strip("[]")
        port = target.port or (443 if target.scheme == "https" else 80)
        address = await self._address(host, port)
        return client.build_request(
            "GET",
            target.copy_with(host=address),
            headers={
                "host": target.netloc.decode("ascii"),
                "accept": "image/png, image/jpeg, image/webp, image/gif",
                "accept-encoding": "identity",
                "user-agent": "rkserve",
            },
            extensions={} if _is_address(host) else {"sni_hostname": host},
        )

    async def _address(self, host: str, port: int) -> str:
        try:
            addresses = [host] if _is_address(host) else await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        # All of them must do: a name that also means a machine of this network is not to be trusted. What a
        # name means here is told to nobody.
        if not addresses or not all(map(self._allowed, addresses)):
            raise FetchError("has no public address, and images are fetched from such addresses only")
        return addresses[0]


def _parsed(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError):
        raise FetchError("is no address that can be understood") from None
    if parsed.scheme not in ("http", "https") or not parsed.raw_host:
        raise FetchError("must be a data URL, or an http or https address")
    if parsed.userinfo:
        raise FetchError("must not have a name or password in its address")
    if parsed.port is not None and not 0 < parsed.port < 65_536:
        raise FetchError("is no address that can be understood")
    return parsed


def _joined(url: str, location: str) -> str:
    try:
        return str(httpx2.URL(url).join(location))
    except (httpx2.InvalidURL, ValueError):
        raise FetchError("could not be fetched: it is redirected to what is no address") from None


async def _body(response: httpx2.Response, limit: int, charge: Charge) -> bytes:
    if response.status_code != 200:
        raise FetchError(f"could not be fetched: its server answered {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchError("could not be fetched: its server compresses what it was asked to send as it is")
    pieces = bytearray()
    async for piece in response.aiter_raw():
        if len(pieces) + len(piece) > limit:
            raise FetchError(f"is larger than {limit / 2**20:.3g} MB, all that this request may still bring")
        charge(len(piece))
        pieces += piece
    return bytes(pieces)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
