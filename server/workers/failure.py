"""From what went wrong in a worker to the error a client gets."""

from __future__ import annotations

from collections.abc import Mapping

from backends.base import ErrorCode
from server.errors import (
    ApiError,
    BackendCrashed,
    BackendTimeout,
    ContextLengthExceeded,
    InsufficientMemory,
    InvalidRequest,
    LoadError,
    LoadFailed,
    ModelCorrupt,
    RuntimeVersionMismatch,
    UnsupportedParameter,
    without_folders,
)

_ERRORS: Mapping[ErrorCode, type[ApiError]] = {
    "context_length_exceeded": ContextLengthExceeded,
    "unsupported_parameter": UnsupportedParameter,
    "invalid_request": InvalidRequest,
    "runtime_version_mismatch": RuntimeVersionMismatch,
    "model_corrupt": ModelCorrupt,
    "insufficient_memory": InsufficientMemory,
    "load_failed": LoadFailed,
    "backend_crashed": BackendCrashed,
    "backend_timeout": BackendTimeout,
}

SHOWN_LINES = 4


class RunNotBegun(BackendCrashed):
    """The worker ended before its engine was given the run, which another worker can therefore make.

    cause: the error that tells of the worker's end.
    """

    def __init__(self, cause: ApiError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def error_of(code: ErrorCode, message: str, param: str | None = None) -> ApiError:
    """Return the error for a code that a worker reported. What paths it names are of this machine."""
    kind = _ERRORS[code]
    return kind(without_folders(message) if issubclass(kind, InvalidRequest) else message, param)


def load_error_of(code: ErrorCode, message: str) -> ApiError:
    """Return the error for a load that a worker reported as failed: never one that blames the request."""
    error = error_of(code, message)
    return error if isinstance(error, LoadError) else LoadFailed(message)


def with_output(message: str, lines: list[str]) -> str:
    """Return a message with the last lines a worker printed, which mostly name the cause."""
    if not lines:
        return message
    return f"{message} Its last output: {' / '.join(lines[-SHOWN_LINES:])}"
