"""A model in a package, as an index would offer it."""

from __future__ import annotations

import zipfile
from pathlib import Path

OWN = """\
version: 1
models:
  small:
    backend: hybrid
    folder: .
    template: chatml
    context_length: 64
    memory_mb: 10
    license: {id: MIT}
    source: {package: rkserve-test-model, version: "1.0", file: data/model.gguf}
    sha256: "0000000000000000000000000000000000000000000000000000000000000000"
"""


def wheel(directory: Path, content: bytes) -> Path:
    """Write the wheel of a package that holds a model, as an index would offer it."""
    directory.mkdir()
    info = "rkserve_test_model-1.0.dist-info"
    with zipfile.ZipFile(directory / "rkserve_test_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("data/model.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: rkserve-test-model\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"data/model.gguf,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return directory
