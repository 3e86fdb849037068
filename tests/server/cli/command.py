"""Runs the command line as a process of its own, away from the settings of whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.serving import clean_environment

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-P", "-m", "server.cli")
TIMEOUT_S = 90


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment whose configuration and data directories are in `home`."""
    own = {
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "RKSERVE_RUNTIME_DIRS": str(home / "runtimes"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "TERM": "xterm",
    }
    return clean_environment(**(own | more))


def rkserve(
    *arguments: str, home: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in the directory `home`."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=home,
        env=environment(home, **variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def models_dir(home: Path) -> Path:
    """Return where the commands run in `home` keep their models."""
    return home / "data" / "rkserve" / "models"


def path_with(directory: Path) -> str:
    """Return a PATH on which a directory comes first."""
    return f"{directory}{os.pathsep}{os.environ['PATH']}"
