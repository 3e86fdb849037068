"""Turns everything that can go wrong in a request into the one form of error the API has."""

from __future__ import annotations

import logging

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from server.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound
from server.http.validation import first_problem

_log = logging.getLogger(__name__)


def error_response(error: ApiError) -> Response:
    """Return the response of an error: its status, headers and body."""
    return Response(
        msgspec.json.encode(error.body()),
        status_code=error.status,
        headers=dict(error.headers),
        media_type="application/json",
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make the framework's own errors look like ours. What nobody foresaw is caught by RequestContext."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    if error.status >= 500:
        _log.warning("%s: %s", error.code, error.message)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        response = error_response(MethodNotAllowed(f"{path} takes {allowed}, not {request.method}"))
        response.headers["allow"] = allowed
        return response
    if error.status_code == 404:
        return error_response(
            NotFound(f"there is no {path} here; the API's paths begin with /v1, and /openapi.json lists them")
        )
    return error_response(InvalidRequest(str(error.detail)))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(first_problem(error.errors()))
