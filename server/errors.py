"""Every error a client can get, with its status, code and headers. Drawn as a tree:

ApiError
+- InvalidRequest               400 invalid_request
|  +- UnsupportedParameter      400 unsupported_parameter
|  +- ContextLengthExceeded     400 context_length_exceeded
|  +- InvalidApiKey             401 invalid_api_key
|  +- ModelNotFound             404 model_not_found
|  |  +- ModelNotInstalled      404 model_not_installed
|  +- NotFound                  404 not_found
|  +- MethodNotAllowed          405 method_not_allowed
|  +- BodyTooLarge              413 body_too_large
+- ServerBusy                   503 server_busy, Retry-After
+- LoadError                    503, x-should-retry: false
|  +- RuntimeVersionMismatch, ModelCorrupt, InsufficientMemory, LoadFailed
+- BackendFailure               500, x-should-retry: false
|  +- BackendCrashed, BackendTimeout
+- FormNotMet                   500 form_not_met, x-should-retry: false
+- InternalError                500, x-should-retry: false
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

# An absolute path up to its last name; what the kernel shows of itself under /dev, /proc and /sys is the same
# everywhere. No part of a URL and no path of the API (/v1/...).
_FOLDERS = re.compile(
    r"""(?<![^\s"'`(\[{=,;:])/(?!dev/|proc/|sys/|v1/)(?:[^\s/"'`,;:]+/)+(?=[^\s/"'`,;:)\]}])"""
)


def without_folders(text: str) -> str:
    """Return a text as clients may see it: of the server's files the names, not where they are."""
    return _FOLDERS.sub("", text)


class ApiError(Exception):
    """An error with a status, a code and a message for the person at the other end."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that go with the status."""
        return {}

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return the JSON body the OpenAI clients expect."""
        message = self.shown()
        return {"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}}

    def shown(self) -> str:
        """Return the message as clients may see it; `message` is for the log."""
        return self.message


class InvalidRequest(ApiError):
    """A field is missing, of the wrong type or out of range."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class UnsupportedParameter(InvalidRequest):
    """The model cannot honour this parameter."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for an answer."""

    code = "context_length_exceeded"


class InvalidApiKey(InvalidRequest):
    """No key, or a wrong one."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"www-authenticate": "Bearer"}


class ModelNotFound(InvalidRequest):
    """No entry of this name."""

    status = 404
    code = "model_not_found"


class ModelNotInstalled(ModelNotFound):
    """The entry is known, its files are not there."""

    code = "model_not_installed"


class NotFound(InvalidRequest):
    """No such path."""

    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    """The path is known, the method is not."""

    status = 405
    code = "method_not_allowed"


class BodyTooLarge(InvalidRequest):
    """The body is over the limit."""

    status = 413
    code = "body_too_large"


class ServerBusy(ApiError):
    """The queue is full."""

    status = 503
    code = "server_busy"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": str(self.retry_after_s)}


class _Final(ApiError):
    @property
    def headers(self) -> Mapping[str, str]:
        return {"x-should-retry": "false"}

    def shown(self) -> str:
        # These tell what is wrong on this machine, with paths; other messages have those of the request.
        return without_folders(self.message)


class LoadError(_Final):
    """The model cannot be loaded, and trying again will not help."""

    status = 503


class RuntimeVersionMismatch(LoadError):
    """No runtime library fits the model."""

    code = "runtime_version_mismatch"


class ModelCorrupt(LoadError):
    """A file of the model is damaged or incomplete."""

    code = "model_corrupt"


class InsufficientMemory(LoadError):
    """The model does not fit into the memory there is."""

    code = "insufficient_memory"


class LoadFailed(LoadError):
    """Loading failed for another reason, which the message names."""

    code = "load_failed"


class BackendFailure(_Final):
    """The worker did not live to finish the answer.

    reason: the message for everybody, without what the worker printed: that may be of one client's request.
    """

    def __init__(self, message: str, param: str | None = None, *, reason: str | None = None) -> None:
        super().__init__(message, param)
        self.reason = reason or message


class BackendCrashed(BackendFailure):
    """The worker died."""

    code = "backend_crashed"


class BackendTimeout(BackendFailure):
    """The worker hung and was ended."""

    code = "backend_timeout"


class FormNotMet(_Final):
    """The model has answered twice in another form than the one asked for."""

    code = "form_not_met"


class InternalError(_Final):
    """A fault of the server's own."""
