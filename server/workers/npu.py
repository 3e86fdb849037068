"""Which models run on the NPU, one at a time; the others run on the CPU beside each other."""

from __future__ import annotations

from pathlib import Path

from server.registry import Entry


def npu_present(sysroot: Path) -> bool:
    """Return whether the machine has an NPU with its driver."""
    marks = ("sys/module/rknpu", "sys/class/devfreq/fdab0000.npu", "dev/rknpu")
    return any((sysroot / mark).exists() for mark in marks)


def must_use_npu(entry: Entry) -> bool | None:
    """Return whether a model's worker takes the NPU, by its entry alone.

    None, with the executor auto: where there is one, a library for it and .rknn files (Runtimes.uses_npu).
    """
    if entry.backend == "rkllm":
        return True
    executor = entry.hybrid.executor
    return None if executor == "auto" else executor in ("rknn", "rknnlite")
