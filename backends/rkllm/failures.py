"""What the library's return codes and log lines come to as errors of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backends.base import BackendError, EngineLost
from backends.rkllm.log import LoggedFault

SHOWN_LINES = 3


def raise_fatal(faults: Sequence[LoggedFault]) -> None:
    """Raise EngineLost if a fault is one after which the process is of no more use."""
    if fatal := [fault for fault in faults if fault.fatal]:
        raise EngineLost(f"{fatal[0].message} (It said: {fatal[0].line})")


def load_failed(
    model: Path, status: int, faults: Sequence[LoggedFault], lines: Sequence[str]
) -> BackendError:
    """Return the error for a model that did not load, with the reason if the library gave one."""
    if faults:
        return BackendError(faults[0].code, f"{model.name} cannot be loaded. {faults[0].message}")
    what = f"returned {status}" if status != 0 else "returned no handle"
    return BackendError(
        "load_failed",
        f"{model.name} cannot be loaded: the runtime {what} and gave no reason that is known."
        f"{quoted(lines)} Verify the file, and check the free memory and the NPU driver: rkserve "
        "doctor.",
    )


def quoted(lines: Sequence[str]) -> str:
    """Return the last lines of the library's output as a sentence, nothing if there are none."""
    return f" Its last output: {' / '.join(lines[-SHOWN_LINES:])}." if lines else ""
