"""The outermost layer of a request: its id, its line in the log, a last resort for what nobody foresaw."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import InternalError
from server.http.clients import ClientGone
from server.http.errors import ErrorResponse
from server.http.record import CLIENT_GONE, OK, Record, path_of, record_of
from server.logs import REQUEST_ID

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_CLIENT_GONE = 499

_access = logging.getLogger("rkserve.access")
_log = logging.getLogger(__name__)


class Counting(Protocol):
    """Who counts requests."""

    def request_begins(self) -> None:
        """A request's headers have come."""

    def request_ends(self, path: str, model: str, code: str, seconds: float) -> None:
        """A request was answered, or its client has left. path: its route's; model and code: see Record."""


class RequestContext:
    """ASGI middleware. Knows paths and statuses, never bodies, queries or keys."""

    def __init__(self, app: ASGIApp, counting: Counting) -> None:
        self._app = app
        self._counting = counting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        id_header = (b"x-request-id", request_id.encode())
        begun = time.monotonic()
        record = record_of(scope)
        status: int | None = None

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            return send(message)

        self._counting.request_begins()
        token = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            status = _CLIENT_GONE
            record.code = CLIENT_GONE
        except Exception:  # whatever it is: the client gets an answer in the API's form, the log the rest
            _log.exception("a fault of the server's own")
            record.code = InternalError.code
            if status is not None:
                raise  # the headers are gone: all that is left is to cut the connection
            await ErrorResponse(
                InternalError(f"a fault in rkserve; its log tells more under request id {request_id}")
            )(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - begun
            self._counting.request_ends(path_of(scope), record.model, _code(record, status), seconds)
            _access.info(
                "%s %s %s in %.0f ms for %s",
                scope["method"],
                _shown_path(scope),
                status or "cut",
                1000 * seconds,
                scope.get("rkserve.client") or "?",
            )
            REQUEST_ID.reset(token)


def _code(record: Record, status: int | None) -> str:
    """Return how a request ended: the code of its error, else of what the framework alone knows."""
    if record.code:
        return record.code
    if status is None:
        return CLIENT_GONE  # the server has cut it, at its end
    return OK if status < 400 else f"http_{status}"


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return f"req-{uuid.uuid4().hex}"


def _shown_path(scope: Scope) -> str:
    """Return the path as it was sent, percent signs and all: it cannot break a line of the log."""
    return repr(scope["raw_path"][:200].decode("latin-1"))[1:-1]
