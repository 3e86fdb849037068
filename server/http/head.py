"""HEAD is GET without the body. uvicorn leaves the body out; here the routes are asked for a GET."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware, the innermost: the layers around it see the method that was asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            asked = {**scope, "method": "GET"}
            try:
                await self._app(asked, receive, send)
            finally:
                scope["route"] = asked.get("route")
            return
        await self._app(scope, receive, send)
