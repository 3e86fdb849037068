"""models.yaml as a test writes it, read, and what is wrong with it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from server.registry import Registry, RegistryError
from server.registry.load import read_registry

# The keys every entry needs, in lines 4 to 9; a case's own follow from line 10 on.
HYBRID = """\
version: 1
models:
  m:
    backend: hybrid
    folder: .
    template: chatml
    context_length: 4096
    license: {id: MIT}
    memory_mb: 100
"""
RKLLM = HYBRID.replace("hybrid", "rkllm").replace("folder: .", "file: m.rkllm")


def read(text: str, tmp_path: Path) -> Registry:
    file = tmp_path / "models.yaml"
    file.write_text(text, encoding="utf-8")
    return read_registry([file], tmp_path)


def problems(text: str, tmp_path: Path) -> list[str]:
    """Return what is wrong, without the name of the file."""
    with pytest.raises(RegistryError) as caught:
        read(text, tmp_path)
    prefix = f"{tmp_path / 'models.yaml'}:"
    lines = str(caught.value).splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def block(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text), "    ")
