"""What a model and its runtime said of themselves when they were last loaded, kept beside the model's files.

So that commands can show it without a server and without loading anything. Losing it loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from backends.spec import ModelInfo
from server.registry.entry import Entry

LAST_LOAD_FILE = ".last-load.json"  # of the entry whose directory it is


class LastLoad(msgspec.Struct, frozen=True):
    """runtime, warnings, details: as in backends.spec.ModelInfo."""

    runtime: str
    warnings: list[str] = []
    details: dict[str, str] = {}


def keep_last_load(entry: Entry, models_dir: Path, info: ModelInfo) -> None:
    """Write down what a load has told. Raises OSError.

    Nothing of a model that was removed meanwhile: a directory made anew would be in the way of a pull.
    """
    directory = entry.directory(models_dir)
    if entry.path(models_dir).is_relative_to(directory):
        if not directory.is_dir():
            return
    else:
        directory.mkdir(parents=True, exist_ok=True)
    kept = LastLoad(runtime=info.runtime, warnings=info.warnings, details=info.details)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=_file(entry), delete=False) as file:
        try:
            file.write(msgspec.json.format(msgspec.json.encode(kept)))
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, directory / _file(entry))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


def read_last_load(entry: Entry, models_dir: Path) -> LastLoad | None:
    """Return what the last load has told, None where nothing readable is kept."""
    try:
        data = (entry.directory(models_dir) / _file(entry)).read_bytes()
        return msgspec.json.decode(data, type=LastLoad)
    except (OSError, msgspec.MsgspecError):
        return None


def _file(entry: Entry) -> str:
    return LAST_LOAD_FILE if entry.shares_with is None else f".last-load.{entry.id}.json"
