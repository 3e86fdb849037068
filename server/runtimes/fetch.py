"""Copies what is to be installed into an open file, from a path or an http(s) address, within limits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import httpx2

from server.redirects import leaves_https
from server.runtimes.errors import NotFetched

LARGEST_BYTES = 256 * 2**20  # the vendor's libraries have 7 to 8 MB
MOST_REDIRECTS = 5
SILENCE_S = 30.0
_CHUNK_BYTES = 1 << 20
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Report = Callable[[float | None, str], None]
"""Takes the share that is done, None where the whole is not known, and what is being done."""


def is_url(source: str) -> bool:
    """Return whether a source is an address; every other one is a path."""
    return "://" in source


def fetch(source: str, target: IO[bytes], report: Report = lambda done, what: None) -> str:
    """Copy a source's bytes into `target` and return their sha256 in hexadecimal.

    Raises NotFetched where it cannot be had, is too large or ends too early; OSError of `target`.
    """
    digest = hashlib.sha256()
    for piece in _of_url(source, report) if is_url(source) else _of_file(Path(source)):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


def _of_file(path: Path) -> Iterator[bytes]:
    try:
        if path.is_dir():
            raise NotFetched(f"{path} is a directory: name the .so file in it")
        with path.open("rb") as file:
            yield from _limited(iter(lambda: file.read(_CHUNK_BYTES), b""), str(path))
    except OSError as error:
        raise NotFetched(f"{path} cannot be read: {error.strerror}") from error


def _of_url(url: str, report: Report) -> Iterator[bytes]:
    try:
        with httpx2.Client(timeout=SILENCE_S) as client:
            before: httpx2.URL | None = None
            for _ in range(MOST_REDIRECTS + 1):
                before = target = _checked(url, before)
                with client.stream("GET", target, headers={"accept-encoding": "identity"}) as response:
                    if response.status_code not in _REDIRECTS:
                        yield from _body(response, url, report)
                        return
                    url = str(target.join(response.headers.get("location", "")))
    except httpx2.TimeoutException as error:
        raise NotFetched(f"{url} did not answer within {SILENCE_S:g} s; try again") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotFetched(f"{url} could not be fetched: {error or type(error).__name__}") from error
    raise NotFetched(f"{url} could not be fetched: it is redirected more than {MOST_REDIRECTS} times")


def _checked(url: str, before: httpx2.URL | None) -> httpx2.URL:
    """Return the address if it may be asked. before: the address that led to it."""
    target = httpx2.URL(url)
    if target.scheme not in ("http", "https") or not target.host:
        raise NotFetched(f"{url} is no http or https address; a file is named by its path")
    if before is not None and leaves_https(before, target):
        raise NotFetched(f"it is redirected from https to {url}, where anybody on the way can change it")
    return target


def _body(response: httpx2.Response, url: str, report: Report) -> Iterator[bytes]:
    if response.status_code != 200:
        raise NotFetched(f"{url} could not be fetched: its server answers {response.status_code}")
    said = response.headers.get("content-length", "")
    total = int(said) if said.isdecimal() else None
    if total is not None and total > LARGEST_BYTES:
        raise _too_large(url)
    done = 0
    for piece in _limited(response.iter_raw(_CHUNK_BYTES), url):
        done += len(piece)
        of = "" if total is None else f" of {total / 1e6:.1f}"
        report(done / total if total else None, f"{done / 1e6:.1f}{of} MB")
        yield piece
    if total is not None and done != total:
        raise NotFetched(f"{url} sent {done} of {total} bytes; try again")


def _limited(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > LARGEST_BYTES:
            raise _too_large(name)
        yield piece


def _too_large(name: str) -> NotFetched:
    return NotFetched(
        f"{name} has more than {LARGEST_BYTES >> 20} MB, and no runtime library is so large: check the name"
    )
