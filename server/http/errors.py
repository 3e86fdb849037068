"""Turns everything that can go wrong in a request into the one form of error the API has."""

from __future__ import annotations

import logging

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound
from server.http.record import record_of
from server.http.validation import first_problem

_log = logging.getLogger(__name__)


class ErrorResponse(Response):
    """The response of an error: its status, headers and body. Sent, it stands in the request's record."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(
            msgspec.json.encode(error.body()),
            status_code=error.status,
            headers=dict(error.headers),
            media_type="application/json",
        )
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record_of(scope).code = self._code
        await super().__call__(scope, receive, send)


def install_error_handlers(app: FastAPI) -> None:
    """Make the framework's own errors look like ours. What nobody foresaw is caught by RequestContext."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if error.status >= 500:
        _log.warning("%s: %s", error.code, error.message)
    return ErrorResponse(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        response = ErrorResponse(MethodNotAllowed(f"{path} takes {allowed}, not {request.method}"))
        response.headers["allow"] = allowed
        return response
    if error.status_code == 404:
        return ErrorResponse(
            NotFound(f"there is no {path} here; the API's paths begin with /v1, and /openapi.json lists them")
        )
    return ErrorResponse(InvalidRequest(str(error.detail)))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return ErrorResponse(first_problem(error.errors()))
