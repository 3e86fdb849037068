"""What a file that is offered as a runtime library is, told by its bytes alone. Nothing is loaded.

Neutral, as `discovery` is, which looks for libraries under their names; here the name says nothing: a
download may be called anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backends.discovery import Kind, read_version
from backends.elf import NotElf, promised_size, read_header
from backends.elf import own_machine as own_machine  # what a library must be for

# In this order: librkllmrt may well carry pieces of the other one, which knows nothing of language models.
_KINDS: tuple[Kind, ...] = ("rkllm", "rknn")


@dataclass(frozen=True)
class Identity:
    """machine: as `uname -m` names it, None for what is no ELF file. kind, version_text: None where unknown.

    whole: whether the file is as long as its headers promise, which one cut off in transit is not.
    """

    machine: str | None
    kind: Kind | None = None
    version_text: str | None = None
    whole: bool = True


def identify(path: Path) -> Identity:
    """Return what a file is. Raises OSError."""
    try:
        header = read_header(path)
        whole = path.stat().st_size >= promised_size(path)
    except NotElf:
        return Identity(None)
    for kind in _KINDS:
        if (version := read_version(path, kind)) is not None:
            return Identity(header.machine, kind, version, whole)
    return Identity(header.machine, whole=whole)
