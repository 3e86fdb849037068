"""Why onnxruntime cannot load a graph: the file, the memory, or the threads the system does not give.

Judged by kinds of errors and by what is free, never by what an error says.
"""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import onnxruntime
import psutil
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from backends.base import BackendError, EngineLost

_BAD_FILE = (
    ort_errors.InvalidProtobuf,
    ort_errors.InvalidGraph,
    ort_errors.InvalidArgument,
    ort_errors.NoModel,
    ort_errors.NoSuchFile,
    UnicodeDecodeError,
)
# What a run over bound memory ends with, whatever went wrong.
RUN_ERRORS = (RuntimeError, MemoryError, ort_errors.EPFail)
_OVERHEAD_BYTES = 32 * 1024 * 1024  # of a session, whatever its weights
_COPIES = 2  # of the weights while they are repacked


def check_threads(count: int) -> None:
    """Start and end so many threads: onnxruntime 1.32 waits for ever for those it cannot start.

    Raises BackendError(load_failed).
    """
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise BackendError(
            "load_failed",
            f"The system lets this process start {len(started)} of the {count} threads the model needs "
            f"({error}). Raise the limits of the service on tasks and memory, or lower threads under hybrid "
            "in models.yaml.",
        ) from error
    finally:
        end.set()
        for thread in started:
            thread.join()


def run_error(error: Exception) -> EngineLost:
    """Return what to report when a graph that was loaded did not compute."""
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return EngineLost(
        "onnxruntime could not compute a part of the model, for want of memory or because its files changed "
        f"under it; rkserve verify compares them. (It said: {said})"
    )


def load_error(error: Exception, path: Path, size_bytes: int) -> BackendError:
    """Return what to report when a graph did not load. size_bytes: of it and its weights.

    Want of memory comes as MemoryError, or as a general error that could mean anything.
    """
    short = _free_bytes() < _OVERHEAD_BYTES + _COPIES * size_bytes
    if isinstance(error, MemoryError) or (short and not isinstance(error, _BAD_FILE)):
        return BackendError(
            "insufficient_memory",
            f"The system gave onnxruntime too little memory for {path} ({error}). Stop other programs or "
            "choose a smaller model.",
        )
    if isinstance(error, (*_BAD_FILE, ort_errors.Fail)):
        return BackendError(
            "model_corrupt", f"onnxruntime cannot load {path}: {error}\nPull or convert the model again."
        )
    return BackendError(
        "load_failed",
        f"onnxruntime {onnxruntime.__version__} cannot load {path}: {error}\nCheck the limits of the service "
        "on memory and tasks, then the version of onnxruntime; then verify the model's files.",
    )


def _free_bytes() -> int:
    """Return how much memory this process may still get, of the system's and within its own limit."""
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - psutil.Process().memory_info().vms)
    return int(free)
