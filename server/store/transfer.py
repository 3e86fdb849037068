"""Fetches a file over HTTP into a partial file: by ranges where it was begun, again where it was cut off.

Bytes are never taken on trust: what comes is compared with a hash by whoever asked for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from server.redirects import refuse_leaving_https
from server.store.errors import TransferFailed
from server.store.partial import PartialFile

CONNECT_S = 10.0
READ_S = 30.0  # a server that sends nothing for so long is asked again
TRIES = 6  # in a row without a single byte
MOST_PAUSE_S = 30.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
# No try later helps.
UNUSABLE = (
    httpx2.InvalidURL,
    httpx2.TooManyRedirects,
    httpx2.UnsupportedProtocol,
    httpx2.DecodingError,
)
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Place:
    """Where a file is to be had now. etag: told by its server, to notice another content under the address.

    lasting: the content cannot change, or a hash of it is known; else it is gone on with only by its etag.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str | None = None
    lasting: bool = True


Locate = Callable[[], Place]


@contextmanager
def http_client(read_s: float = READ_S) -> Iterator[httpx2.Client]:
    """Give a client for transfers: proxies and certificates of the environment, no compression,
    no redirect from https to http."""
    timeout = httpx2.Timeout(read_s, connect=min(CONNECT_S, read_s))
    headers = {"accept-encoding": "identity", "user-agent": "rkserve"}
    with httpx2.Client(
        timeout=timeout,
        headers=headers,
        follow_redirects=True,
        event_hooks={"response": [refuse_leaving_https]},
    ) as client:
        yield client


def fetch(
    client: httpx2.Client,
    locate: Locate,
    partial: PartialFile,
    size_bytes: int | None,
    name: str,
    advance: Callable[[int], None],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch what is missing of a file, at its end, into `partial`.

    locate: asked before every try, since an address may be good for a while only. size_bytes: of the whole
    file, None where nobody knows. name: for messages. advance: called with how much there is now, in bytes;
    it may become less, where a server begins anew. pause: waits some seconds before another try.

    Raises TransferFailed where the file cannot be had, and OSError of the disk.
    """
    failures = 0
    while size_bytes is None or partial.size_bytes < size_bytes:
        before = partial.size_bytes
        try:
            if _fetch_once(client, locate(), partial, size_bytes, name, advance):
                break
            reason: object = "the connection was cut"
        except UNUSABLE as error:  # before the errors they are kinds of
            raise TransferFailed(f"{name} could not be fetched: {error}") from error
        except httpx2.TransportError as error:
            reason = _reason(error)
        except _TryAgain as error:
            reason = error
            if error.after_s is not None:
                pause(min(error.after_s, MOST_PAUSE_S))
        failures = 1 if partial.size_bytes > before else failures + 1
        if failures >= TRIES:
            raise TransferFailed(
                f"{name} could not be fetched: {reason}. What has arrived is kept; start again to go on "
                "with it"
            )
        pause(min(2.0 ** (failures - 1), MOST_PAUSE_S) / 2)
    if size_bytes is not None and partial.size_bytes > size_bytes:
        partial.resize(0)
        raise TransferFailed(f"{name}: more came than its {size_bytes} bytes. Start again")


class _TryAgain(Exception):
    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


def _fetch_once(
    client: httpx2.Client,
    place: Place,
    partial: PartialFile,
    size_bytes: int | None,
    name: str,
    advance: Callable[[int], None],
) -> bool:
    """Fetch until the end or a cut; return whether it was the end."""
    if not place.lasting and place.etag is None:
        partial.resize(0)
    begun = partial.size_bytes
    headers = dict(place.headers)
    if begun:
        headers["range"] = f"bytes={begun}-"
        if place.etag is not None:
            headers["if-range"] = place.etag
    with client.stream("GET", place.url, headers=headers) as response:
        total = _begin(response, partial, begun, size_bytes, name)
        there = partial.size_bytes
        advance(there)
        for chunk in response.iter_raw():
            partial.write_at(there, chunk)
            there += len(chunk)
            advance(there)
            if size_bytes is not None and there > size_bytes:
                break
    return total is None or there >= total


def _begin(
    response: httpx2.Response, partial: PartialFile, begun: int, size_bytes: int | None, name: str
) -> int | None:
    """Make the partial file ready for what comes; return how large it will be, None if that is not said."""
    status = response.status_code
    if status in _AGAIN:
        raise _TryAgain(f"its server says {status}", _retry_after_s(response))
    if status == 416 and begun:
        partial.resize(0)
        raise _TryAgain("its server has less of it than was fetched before")
    if status == 206:
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None or int(found[1]) != begun:
            partial.resize(0)
            raise _TryAgain("its server sends another part than was asked for")
        total = None if found[3] == "*" else int(found[3])
    elif status == 200:
        partial.resize(0)  # the server has no ranges, or another content than the one that was begun
        length = response.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else None
    else:
        raise TransferFailed(f"{name} could not be fetched: {_refusal(response)}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise TransferFailed(f"{name} could not be fetched: its server sends it compressed")
    if total is not None and size_bytes is not None and total != size_bytes:
        raise TransferFailed(
            f"{name} should have {size_bytes} bytes, and its server has {total}: it is another file. "
            "If a mirror is used (HF_ENDPOINT), try without it, or later"
        )
    return total if total is not None else size_bytes


def _refusal(response: httpx2.Response) -> str:
    said = {401: ", it wants a login", 403: ", it allows it not", 404: ", it has no such file"}
    return f"{response.url.host} says {response.status_code}{said.get(response.status_code, '')}"


def _retry_after_s(response: httpx2.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def _reason(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "its server does not answer in time"
    return str(error) or type(error).__name__
