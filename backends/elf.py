"""What an ELF file's headers tell without loading it: the machine it is for and the libraries it needs.

Knows nothing of what is in the file otherwise. Reads headers only, so that a large library costs nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MACHINES: Mapping[tuple[int, int], str] = {  # e_machine of <elf.h>, bits
    (3, 32): "i386",
    (40, 32): "armhf",
    (62, 64): "x86_64",
    (183, 64): "aarch64",
    (243, 64): "riscv64",
}
OWN_EXECUTABLE = Path("/proc/self/exe")

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_MAX_TABLE_BYTES = 1 << 20
_MAX_NAME_BYTES = 4096


class NotElf(Exception):
    """The file is no ELF file, or one that ends too early."""


@dataclass(frozen=True)
class ElfHeader:
    """machine: as `uname -m` names it, or "machine 123 (64 bit)"."""

    machine: str
    bits: int
    order: str  # of struct: "<" or ">"


def read_header(path: Path) -> ElfHeader:
    """Read whose machine's file this is. Raises OSError, NotElf."""
    with path.open("rb") as file:
        return _header(file)


def own_machine() -> str | None:
    """Return the machine this process runs as, None where that cannot be told."""
    try:
        return read_header(OWN_EXECUTABLE).machine
    except (OSError, NotElf):
        return None


def promised_size(path: Path) -> int:
    """Return how many bytes a file has at least by its own tables; for a 32-bit one 0. Raises as `needed`.

    The section headers stand at the end of what a linker writes, so a file that was cut off is shorter.
    """
    with path.open("rb") as file:
        header = _header(file)
        if header.bits != 64:
            return 0
        ends = [segment.offset + segment.size for segment in _segments(file, header.order)]
        (table,) = struct.unpack(header.order + "Q", _read(file, 40, 8))
        size, count = struct.unpack(header.order + "HH", _read(file, 58, 4))
        return int(max([table + size * count, *ends]))


def needed(path: Path) -> list[str]:
    """Return the libraries a 64-bit file needs, in its order. Raises OSError, NotElf."""
    with path.open("rb") as file:
        header = _header(file)
        if header.bits != 64:
            raise NotElf("a 32-bit file")
        segments = _segments(file, header.order)
        dynamic = [entry for entry in segments if entry.kind == _PT_DYNAMIC]
        if not dynamic:
            return []
        table = _read(file, dynamic[0].offset, min(dynamic[0].size, _MAX_TABLE_BYTES) // 16 * 16)
        names, strings = [], None
        for tag, value in struct.iter_unpack(header.order + "qQ", table):
            if tag == _DT_NULL:
                break
            if tag == _DT_NEEDED:
                names.append(value)
            elif tag == _DT_STRTAB:
                strings = value
        if strings is None:
            return []
        start = _file_offset(segments, strings)
        return [_text(file, start + name) for name in names]


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _header(file: BinaryIO) -> ElfHeader:
    head = file.read(20)
    if len(head) < 20 or head[:4] != _MAGIC or head[4] not in (1, 2) or head[5] not in (1, 2):
        raise NotElf("no ELF header")
    bits, order = 32 * head[4], "<" if head[5] == 1 else ">"
    (machine,) = struct.unpack_from(order + "H", head, 18)
    return ElfHeader(MACHINES.get((machine, bits), f"machine {machine} ({bits} bit)"), bits, order)


def _segments(file: BinaryIO, order: str) -> list[_Segment]:
    (table,) = struct.unpack(order + "Q", _read(file, 32, 8))
    size, count = struct.unpack(order + "HH", _read(file, 54, 4))
    if size < 56:
        raise NotElf("program headers of an unknown size")
    segments = []
    for index in range(count):
        kind, _, offset, address, _, in_file, _, _ = struct.unpack(
            order + "IIQQQQQQ", _read(file, table + index * size, 56)
        )
        segments.append(_Segment(kind, offset, address, in_file))
    return segments


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    raise NotElf("an address outside every segment")


def _text(file: BinaryIO, offset: int) -> str:
    file.seek(offset)
    return os.fsdecode(file.read(_MAX_NAME_BYTES).split(b"\0", 1)[0])


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise NotElf("it ends too early")
    return data
