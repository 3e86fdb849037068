"""Other copies of a model, to mend one's own by: another rkserve, files at an address, files on a disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote

import httpx2

from server.store.errors import StoreError, TransferFailed
from server.store.manifest import MANIFEST_FILE, MOST_MANIFEST_BYTES, FileManifest, Manifest, decode_manifest
from server.store.transfer import UNUSABLE

TRIES = 4
MOST_MESSAGE_BYTES = 2**16
T = TypeVar("T")


class KeyRefused(TransferFailed):
    """The other rkserve wants another key, or one at all."""


class Copy(Protocol):
    """Another copy of a model's files. None of it is taken on trust: whoever reads it checks the hashes."""

    def manifest(self) -> Manifest | None:
        """Return what it says its files are, None where it says nothing. Raises StoreError."""

    def read(self, file: FileManifest, offset: int, length: int) -> bytes:
        """Return a part of a file. Raises TransferFailed, also where it has less of it."""

    def local(self, name: str) -> Path | None:
        """Return where a file lies, if it is on a disk of this machine."""


class OtherServer:
    """An rkserve on the network. key: one of its API keys, where it asks for them."""

    def __init__(self, client: httpx2.Client, url: str, model: str, key: str | None) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        self._url = f"{base}/v1/models/{quote(model, safe='')}"
        self._client = client
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def manifest(self) -> Manifest:
        response = _get(self._client, f"{self._url}/manifest", self._headers)
        if response.status_code == 401:
            raise KeyRefused(
                f"{_host(self._url)} asks for an API key, or does not know this one: put one of its keys "
                "into RKSERVE_API_KEY"
            )
        if response.status_code != 200:
            raise TransferFailed(f"{_host(self._url)} says {response.status_code}: {_message(response)}")
        return decode_manifest(response.content, _host(self._url))

    def read(self, file: FileManifest, offset: int, length: int) -> bytes:
        return _read_range(
            self._client, f"{self._url}/files/{file.sha256}", self._headers, offset, length, file.size_bytes
        )

    def local(self, name: str) -> Path | None:
        return None


class Address:
    """Files behind a http or https address: one file, or with a slash at its end the directory of a model."""

    def __init__(self, client: httpx2.Client, url: str, main: str) -> None:
        self._client = client
        self._url = url
        self._main = main

    def manifest(self) -> Manifest | None:
        if not self._url.endswith("/"):
            return None
        response = _get(self._client, self._url + MANIFEST_FILE, {})
        return decode_manifest(response.content, self._url) if response.status_code == 200 else None

    def read(self, file: FileManifest, offset: int, length: int) -> bytes:
        if self._url.endswith("/"):
            url = self._url + quote(file.name)
        elif file.name == self._main:
            url = self._url
        else:
            raise TransferFailed(f"{self._url} is one file, and {file.name} is another one that is needed")
        return _read_range(self._client, url, {}, offset, length, file.size_bytes)

    def local(self, name: str) -> Path | None:
        return None


class Disk:
    """Files on a disk, such as a NAS that is mounted: one file, or the directory of a model."""

    def __init__(self, path: Path, main: str) -> None:
        self._path = path
        self._main = main

    def manifest(self) -> Manifest | None:
        try:
            content = (self._path / MANIFEST_FILE).read_bytes()
        except OSError:
            return None
        return decode_manifest(content, str(self._path))

    def read(self, file: FileManifest, offset: int, length: int) -> bytes:
        path = self.local(file.name)
        if path is None:
            raise TransferFailed(f"{self._path} has no {file.name}")
        try:
            with path.open("rb") as opened:
                opened.seek(offset)
                data = opened.read(length)
        except OSError as error:
            raise TransferFailed(f"{path} cannot be read: {error.strerror}") from error
        if len(data) != length:
            raise TransferFailed(f"{path} ends too early: it is damaged, or another file")
        return data

    def local(self, name: str) -> Path | None:
        path = self._path / name if self._path.is_dir() else self._path
        if not self._path.is_dir() and name != self._main:
            return None
        return path if path.is_file() else None


def open_copy(client: httpx2.Client, place: str, model: str, main: str, key: str | None) -> Copy:
    """Return the copy that a person named. Raises StoreError.

    main: what manifests call the model's own file. key: for another rkserve.
    """
    if place.startswith(("http://", "https://")):
        path = _parsed(place).path.rstrip("/")
        if path in ("", "/v1"):
            return OtherServer(client, place, model, key)
        return Address(client, place, main)
    if not Path(place).exists():
        hint = "" if "/" in place else f"; another rkserve is named as http://{place}"
        raise StoreError(f"there is no {place} here{hint}")
    return Disk(Path(place), main)


def _parsed(place: str) -> httpx2.URL:
    try:
        url = httpx2.URL(place)
    except httpx2.InvalidURL as error:
        raise StoreError(f"{place} is no address: {error}") from error
    if not url.host:
        raise StoreError(f"{place} is no address: it names no machine, as http://192.168.1.20:8000 does")
    return url


def _get(client: httpx2.Client, url: str, headers: dict[str, str]) -> httpx2.Response:
    """Return a response of moderate size."""

    def ask() -> httpx2.Response:
        with client.stream("GET", url, headers=headers, follow_redirects=not headers) as response:
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > MOST_MANIFEST_BYTES:
                    raise TransferFailed(f"{_host(url)} sends too much for a manifest")
            return httpx2.Response(response.status_code, content=bytes(content), request=response.request)

    return _persistently(ask, url)


def _read_range(
    client: httpx2.Client, url: str, headers: dict[str, str], offset: int, length: int, size_bytes: int
) -> bytes:
    def ask() -> bytes:
        wanted = {"range": f"bytes={offset}-{offset + length - 1}"} | headers
        data = bytearray()
        # A key is for the server that was named, so no redirect is followed with one.
        with client.stream("GET", url, headers=wanted, follow_redirects=not headers) as response:
            if response.status_code in (502, 504):
                raise httpx2.RemoteProtocolError(f"it says {response.status_code}")
            if response.status_code == 200 and length < size_bytes:
                raise TransferFailed(
                    f"{_host(url)} sends no parts of files (it has no ranges), only whole ones"
                )
            if response.status_code not in (200, 206):
                raise TransferFailed(
                    f"{_host(url)} says {response.status_code}: {_message(_short(response))}"
                )
            expected = f"bytes {offset}-{offset + length - 1}/{size_bytes}"
            if response.status_code == 206 and response.headers.get("content-range") != expected:
                raise TransferFailed(
                    f"{_host(url)} has another file, of another size: it answers "
                    f"{response.headers.get('content-range')} where {expected} was asked for"
                )
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > length:
                    break
        if len(data) != length:
            raise TransferFailed(f"{_host(url)} sent {len(data)} bytes where {length} were asked for")
        return bytes(data)

    return _persistently(ask, url)


def _persistently(ask: Callable[[], T], url: str) -> T:
    """Ask again where a connection fails, a few times."""
    for number in range(TRIES):
        try:
            return ask()
        except UNUSABLE as error:  # before the errors they are kinds of
            raise TransferFailed(f"{_host(url)} cannot be used: {error}") from error
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            if number == TRIES - 1:
                raise TransferFailed(
                    f"{_host(url)} cannot be reached, or breaks off ({reason}). Is it running, and is the "
                    "address right? What has been fetched is kept: start again to go on with it"
                ) from error
            time.sleep(0.5 * 2**number)  # another machine comes back: no event tells of it
    raise AssertionError  # the last try returns or raises


def _host(url: str) -> str:
    parsed = httpx2.URL(url)
    return parsed.host if parsed.port is None else f"{parsed.host}:{parsed.port}"


def _short(response: httpx2.Response) -> httpx2.Response:
    """Return an error's response with as much of its text as is worth showing; a liar sends without end."""
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > MOST_MESSAGE_BYTES:
            break
    return httpx2.Response(response.status_code, content=bytes(content))


def _message(response: httpx2.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it has no such file"
