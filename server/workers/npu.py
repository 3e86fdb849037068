"""Which models run on the NPU, one at a time; the others run on the CPU beside each other."""

from __future__ import annotations

from pathlib import Path

from server.registry import Entry


def npu_present(sysroot: Path) -> bool:
    """Return whether the machine has an NPU with its driver."""
    marks = ("sys/module/rknpu", "sys/class/devfreq/fdab0000.npu", "dev/rknpu")
    return any((sysroot / mark).exists() for mark in marks)


def uses_npu(entry: Entry, present: bool) -> bool:
    """Return whether a model's worker takes the NPU, and so waits for its turn on it.

    With the executor auto: where one is `present`. The hybrid engine has no executor for the NPU yet, so for
    now such a model waits for a turn that it does not need.
    """
    if entry.backend == "rkllm":
        return True
    executor = entry.hybrid.executor
    return executor in ("rknn", "rknnlite") or (executor == "auto" and present)
