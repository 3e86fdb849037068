"""What librknnrt's return codes come to: an error of its own for each.

RknnError
+- RknnFailed               -1   RKNN_ERR_FAIL, and every code that is not known
+- RknnTimeout              -2   RKNN_ERR_TIMEOUT
+- DeviceUnavailable        -3   RKNN_ERR_DEVICE_UNAVAILABLE
+- OutOfMemory              -4   RKNN_ERR_MALLOC_FAIL, and memory that is not given
+- ParameterInvalid         -5   RKNN_ERR_PARAM_INVALID
+- ModelInvalid             -6   RKNN_ERR_MODEL_INVALID
+- ContextInvalid           -7   RKNN_ERR_CTX_INVALID
+- InputInvalid             -8   RKNN_ERR_INPUT_INVALID
+- OutputInvalid            -9   RKNN_ERR_OUTPUT_INVALID
+- DeviceMismatch           -10  RKNN_ERR_DEVICE_UNMATCH
+- PlatformMismatch         -13  RKNN_ERR_TARGET_PLATFORM_UNMATCH
"""

from __future__ import annotations

from typing import ClassVar

from backends.base import ErrorCode


class RknnError(Exception):
    """A function of librknnrt failed. `function` and `status` as in C; `subject`: the file it was about.

    code: what a failed load comes to for a client.
    """

    code: ClassVar[ErrorCode] = "load_failed"
    meaning: ClassVar[str] = "it failed and gave no reason"
    remedy: ClassVar[str] = "Check the NPU's driver and its messages (dmesg), then try again."

    def __init__(self, function: str, status: int, subject: str) -> None:
        self.function = function
        self.status = status
        self.subject = subject
        self.message = f"{function} returned {status} for {subject}: {self.meaning}. {self.remedy}"
        super().__init__(self.message)


class RknnFailed(RknnError):
    """RKNN_ERR_FAIL, or a code that is not known."""


class RknnTimeout(RknnError):
    """RKNN_ERR_TIMEOUT."""

    meaning = "the NPU did not finish in time"
    remedy = "Check that no other program uses the NPU, and its driver's messages (dmesg)."


class DeviceUnavailable(RknnError):
    """RKNN_ERR_DEVICE_UNAVAILABLE."""

    meaning = "the NPU is not there or not to be opened"
    remedy = "Check that the driver rknpu is loaded and that this user may open its device: rkserve doctor."


class OutOfMemory(RknnError):
    """RKNN_ERR_MALLOC_FAIL, or no memory where some was asked for."""

    code = "insufficient_memory"
    meaning = "there is no memory for it that the NPU can use"
    remedy = "Unload other models or choose a smaller one."


class ParameterInvalid(RknnError):
    """RKNN_ERR_PARAM_INVALID."""

    meaning = "it does not take what it was given"
    remedy = "Use another version of librknnrt, or convert the model again."


class ModelInvalid(RknnError):
    """RKNN_ERR_MODEL_INVALID."""

    code = "model_corrupt"
    meaning = "the file is no model it can read"
    remedy = "Build the folder's .rknn files again with a toolkit of the library's version."


class ContextInvalid(RknnError):
    """RKNN_ERR_CTX_INVALID."""

    meaning = "the context is not one of its own"


class InputInvalid(RknnError):
    """RKNN_ERR_INPUT_INVALID."""

    meaning = "it does not take these inputs"
    remedy = "Build the folder's .rknn files again, with the lengths meta2.json names."


class OutputInvalid(RknnError):
    """RKNN_ERR_OUTPUT_INVALID."""

    meaning = "it does not give these outputs"
    remedy = "Build the folder's .rknn files again."


class DeviceMismatch(RknnError):
    """RKNN_ERR_DEVICE_UNMATCH."""

    code = "runtime_version_mismatch"
    meaning = "the driver does not fit the library"
    remedy = "Update the system's kernel with its NPU driver, or install an older librknnrt."


class PlatformMismatch(RknnError):
    """RKNN_ERR_TARGET_PLATFORM_UNMATCH."""

    code = "model_corrupt"
    meaning = "the file was built for another chip"
    remedy = "Build the folder's .rknn files for this board: rkserve convert rknn DIR --target rk3588."


_KINDS: dict[int, type[RknnError]] = {
    -1: RknnFailed,
    -2: RknnTimeout,
    -3: DeviceUnavailable,
    -4: OutOfMemory,
    -5: ParameterInvalid,
    -6: ModelInvalid,
    -7: ContextInvalid,
    -8: InputInvalid,
    -9: OutputInvalid,
    -10: DeviceMismatch,
    -13: PlatformMismatch,
}


def check(function: str, status: int, subject: str) -> None:
    """Raise the RknnError of a return code; 0 is success."""
    if status != 0:
        raise _KINDS.get(status, RknnFailed)(function, status, subject)
