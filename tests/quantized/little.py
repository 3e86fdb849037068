"""A small random model in few bits, and what tests of its folder share."""

from __future__ import annotations

from pathlib import Path

from convert.gguf import convert_gguf
from tests.convert.gguf_files import write_gguf


def little_folder(directory: Path) -> Path:
    """Make the hybrid folder of a small GGUF file with matrices in Q4_1, Q8_0 and floats."""
    write_gguf(directory / "little.gguf")
    return convert_gguf(directory / "little.gguf", directory / "little")


def nothing(done: float, what: str) -> None:
    """Progress that nobody watches."""
