"""What the probes have shown, as a document to be sent and as a record beside the model.

Reads descriptions of the board below a sysroot; holds nothing a user wrote: the probes prompt with texts of
their own.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from backends.probing import RKLLM_PROBES, Finding, Value
from server.probing.conductor import Conducted
from server.registry import Entry
from server.sysroot import Sysroot

_BOARD_FILES = {
    "soc": "/proc/device-tree/compatible",
    "npu_driver": "/sys/module/rknpu/version",
    "npu_driver_debug": "/sys/kernel/debug/rknpu/version",
    "npu_frequency_hz": "/sys/class/devfreq/fdab0000.npu/cur_freq",
    "npu_governor": "/sys/class/devfreq/fdab0000.npu/governor",
    "ddr_frequency_hz": "/sys/class/devfreq/dmc/cur_freq",
}


def merged_settings(findings: Sequence[Finding]) -> dict[str, Value]:
    """Return the keys that the findings ask to be set."""
    return {key: value for finding in findings for key, value in finding.settings.items()}


def report(
    entry: Entry, models_dir: Path, library_version: str, conducted: Conducted, sysroot: Path
) -> dict[str, Any]:
    """Return the report, fit for JSON."""
    path = entry.path(models_dir)
    questions = {probe.name: probe.question for probe in RKLLM_PROBES}
    return {
        "rkserve": _own_version(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "id": entry.id,
            "file": path.name,
            "size_bytes": path.stat().st_size if path.is_file() else None,
            "runtime": entry.runtime,
            "template": entry.template,
            "has_tokenizer": entry.tokenizer is not None,
            "context_length": entry.context_length,
            "rkllm": entry.rkllm.model_dump(mode="json"),
        },
        "library": f"librkllmrt {library_version}",
        "load": conducted.details,
        "refused": conducted.refused,
        "board": board(sysroot),
        "findings": [
            {"question": questions.get(finding.probe), **msgspec.to_builtins(finding)}
            for finding in conducted.findings
        ],
        "settings": merged_settings(conducted.findings),
        "log": [_without_home(line) for line in conducted.log],
    }


def probes_record(document: dict[str, Any]) -> dict[str, Any]:
    """Return what of a report is kept beside the model."""
    return {
        "made": document["made"],
        "library": document["library"],
        "size_bytes": document["model"]["size_bytes"],
        "outcomes": {finding["probe"]: finding["outcome"] for finding in document["findings"]},
        "settings": document["settings"],
    }


def board(sysroot: Path) -> dict[str, str]:
    """Return what the machine says of itself."""
    described = {"kernel": platform.release(), "machine": platform.machine(), "python": _python()}
    for name, file in _BOARD_FILES.items():
        text = Sysroot(sysroot).text(file)
        if text is not None:
            described[name] = text.replace("\0", " ")[:200]
    return described


def _own_version() -> str:
    try:
        return version("rkserve")
    except PackageNotFoundError:
        return "not installed"


def _python() -> str:
    return platform.python_version()


def _without_home(line: str) -> str:
    return line.replace(str(Path.home()), "~") if str(Path.home()) != "/" else line
