"""An environment with the stand-in for rknn-toolkit2, made of the one the tests run in."""

from __future__ import annotations

import json
import shutil
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

STAND_IN = Path(__file__).parents[2] / "standin" / "rknn_toolkit" / "rknn"


class StandIn:
    """The environment at `path`. faults: makes segments fail. built: what was built since the last call."""

    def __init__(self, path: Path, version: str = "2.5.0") -> None:
        self.path = path
        venv.create(path, with_pip=False, symlinks=True)
        python = f"python{sysconfig.get_python_version()}"
        self._packages = path / "lib" / python / "site-packages"
        # numpy, onnxruntime and msgspec of the tests', found after this one's own
        (self._packages / "tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        shutil.copytree(STAND_IN, self._packages / "rknn")
        info = self._packages / f"rknn_toolkit2-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rknn-toolkit2\nVersion: {version}\n")

    def faults(self, faults: Mapping[str, str]) -> None:
        (self._packages / "faults.json").write_text(json.dumps(faults))

    def built(self) -> list[str]:
        file = self._packages / "built.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines
