"""Who may use the server: what is asked for at start, and the gate every request passes."""

from __future__ import annotations

import logging
from collections.abc import Container

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import InvalidApiKey
from server.http.errors import ErrorResponse
from server.http.keyring import KeyRing
from server.settings import Settings, SettingsError

OPEN_PATHS = frozenset({"/", "/health", "/ready"})

_log = logging.getLogger(__name__)


def load_keys(settings: Settings) -> KeyRing | None:
    """Return the keys, None where there can be none; warn of a server that is open, or that is closed to all.

    A file that was named asks for keys from the start, the user's own file from its first key on. Raises
    SettingsError where the server must not be open.
    """
    keys = check_keys(settings)
    if keys is not None and keys.asked_for:
        if keys.empty:
            _log.warning(
                "%s holds no key: nobody gets in until `%s` makes one", keys.path, _key_add(settings)
            )
    elif settings.reachable:
        _log.warning("everyone who can reach %s:%d may use this server", settings.host, settings.port)
    return keys


def check_keys(settings: Settings) -> KeyRing | None:
    """Return the keys, None where there can be none. Raises SettingsError if the server must not be open."""
    if settings.api_keys_file is None:
        keys = None
    else:
        keys = KeyRing(settings.api_keys_file, open_until_first=not settings.keys_wanted)
    if (keys is None or keys.empty) and settings.reachable and not settings.open_lan:
        raise SettingsError([_refusal(settings, keys)])
    return keys


def _refusal(settings: Settings, keys: KeyRing | None) -> str:
    where = "" if keys is None else f" ({keys.path} holds none)"
    return (
        f"{settings.origin('host')}: other machines could use this server without a key, and there is none "
        f"yet{where}. Make one with `{_key_add(settings)}`, then start again; or let everyone in with "
        "--open-lan (RKSERVE_OPEN_LAN=on)"
    )


def _key_add(settings: Settings) -> str:
    named = settings.keys_wanted and settings.api_keys_file is not None
    return "rkserve key add NAME" + (f" --file {settings.api_keys_file}" if named else "")


class Gate:
    """ASGI middleware: lets in who has a key, and notes whom a request comes from in scope["rkserve.client"].

    That is the key's name, or the address where no keys are asked for. open_paths: need no key.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing | None, open_paths: Container[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else "local"
        scope["rkserve.client"] = address
        if self._keys is not None and scope["path"] not in self._open_paths and self._keys.asked_for:
            try:
                scope["rkserve.client"] = _known(self._keys, _bearer(scope))
            except InvalidApiKey as error:
                await ErrorResponse(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _known(keys: KeyRing, key: str | None) -> str:
    if keys.empty:
        raise InvalidApiKey(
            "there is no API key on this server, so nobody gets in until `rkserve key add NAME` makes one"
        )
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
