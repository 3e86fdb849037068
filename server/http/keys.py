"""Who may use the server: API keys from a file, kept as hashes, read again when the file changes.

A line is `name:sha256-hex`; empty lines and lines that begin with # are skipped. Keys themselves are never
kept, compared in the clear or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import InvalidApiKey
from server.http.errors import error_response
from server.settings import Settings, SettingsError

OPEN_PATHS = frozenset({"/", "/health", "/ready"})

_LINE = re.compile(r"(?P<name>[^:\s][^:]*):(?P<digest>[0-9a-fA-F]{64})")
_log = logging.getLogger(__name__)


class KeyRing:
    """The keys of one file. Every check looks whether the file has changed: revoking needs no restart."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises SettingsError when it cannot be read, has a bad line or holds no key."""
        self._path = path
        try:
            self._identity = _identity(path)
            self._names, problems = _read(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                [f"RKSERVE_API_KEYS_FILE={path}: cannot be read ({error}); `rkserve key add NAME` writes one"]
            ) from None
        if not self._names and not problems:
            problems = ["holds no key, so that nobody could get in; `rkserve key add NAME` adds one"]
        if problems:
            raise SettingsError([f"RKSERVE_API_KEYS_FILE={path}: {problem}" for problem in problems])

    def name_of(self, key: str) -> str | None:
        """Return whose key this is, None for nobody's. Takes the same time whichever key is right."""
        self._refresh()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _refresh(self) -> None:
        """Read the file again if it is not the one read last. One that cannot be read lets nobody in."""
        try:
            identity = _identity(self._path)
            if identity == self._identity:
                return
            names, problems = _read(self._path)
        except (OSError, UnicodeDecodeError) as error:
            if self._names:
                _log.error("%s cannot be read (%s): no key is accepted until it can", self._path, error)
            self._identity, self._names = None, {}
            return
        self._identity, self._names = identity, names
        _log.info("%s was read again: %d keys", self._path, len(names))
        for problem in problems:
            _log.error("%s: %s", self._path, problem)


_Identity = tuple[int, int, int, int]


def _identity(path: Path) -> _Identity | None:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: Path) -> tuple[Mapping[str, str], list[str]]:
    """Return names by digest, and what is wrong with the lines that are no keys (never the line itself)."""
    names: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if match := _LINE.fullmatch(line):
            names[match["digest"].lower()] = match["name"].strip()
        else:
            problems.append(f"line {number} is not name:sha256-hex; `rkserve key add NAME` writes such lines")
    return names, problems


def load_keys(settings: Settings) -> KeyRing | None:
    """Return the keys, None where the server is open. Raises SettingsError where it must not be."""
    if settings.api_keys_file is not None:
        return KeyRing(settings.api_keys_file)
    if settings.reachable:
        if not settings.open_lan:
            raise SettingsError(
                [
                    f"RKSERVE_HOST={settings.host}: other machines could use this server without a key; set "
                    "RKSERVE_API_KEYS_FILE (`rkserve key add NAME`), or RKSERVE_OPEN_LAN=on if that is wanted"
                ]
            )
        _log.warning("everyone who can reach %s:%d may use this server", settings.host, settings.port)
    return None


class Gate:
    """ASGI middleware: lets in who has a key, and notes whom a request comes from in scope["rkserve.client"].

    That is the key's name, or the address where no keys are asked for.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing | None) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else "local"
        scope["rkserve.client"] = address
        if self._keys is not None and scope["path"] not in OPEN_PATHS:
            try:
                scope["rkserve.client"] = _known(self._keys, _bearer(scope))
            except InvalidApiKey as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _known(keys: KeyRing, key: str | None) -> str:
    if key is None:
        raise InvalidApiKey("this server asks for an API key: send the header Authorization: Bearer KEY")
    name = keys.name_of(key)
    if name is None:
        raise InvalidApiKey("this API key is not known here, or was revoked")
    return name


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                return str(key.strip(), "utf-8", "surrogateescape")
    return None
