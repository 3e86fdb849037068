"""Bounds the memory that the bodies of all requests take together, from their first byte to their answer."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ServerBusy

# Of the largest body there may be. Together with copies made on the way a board must have that much.
LARGEST_BODIES = 4
RETRY_AFTER_S = 10

_SCOPE_KEY = "rkserve.body"
_CURRENT: ContextVar[BodyShare] = ContextVar("rkserve.body")


class BodyBudget:
    """ASGI middleware: gives each request a share that is returned when the request is over."""

    def __init__(self, app: ASGIApp, size_bytes: int) -> None:
        self._app = app
        self.free_bytes = size_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_SCOPE_KEY] = share = BodyShare(self)
        token = _CURRENT.set(share)
        try:
            await self._app(scope, receive, send)
        finally:
            _CURRENT.reset(token)
            share.give_back()


class BodyShare:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Take more. Raises ServerBusy where no more is left; what was taken before stays taken."""
        if size_bytes > self._budget.free_bytes:
            raise ServerBusy(
                "The requests that are being worked on take all the memory there is for requests. "
                f"Try again in {RETRY_AFTER_S} s.",
                RETRY_AFTER_S,
            )
        self._budget.free_bytes -= size_bytes
        self._held_bytes += size_bytes

    def give_back(self) -> None:
        """Return everything."""
        self._budget.free_bytes += self._held_bytes
        self._held_bytes = 0


def share_of(scope: Scope) -> BodyShare:
    """Return the share of a request that came through the middleware."""
    share: BodyShare = scope[_SCOPE_KEY]
    return share


def charge_current(size_bytes: int) -> None:
    """Take more for the request that the running task works on. Raises ServerBusy like BodyShare.add."""
    _CURRENT.get().add(size_bytes)
