"""Fixtures that tests of several folders share."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.demo_model import MODEL, demo_models_dir

# Keys, models and settings of whoever runs the tests are not the tests' own; children inherit this.
for _name in [name for name in os.environ if name.upper().startswith("RKSERVE_")]:
    del os.environ[_name]
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="rkserve-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# A shell starts its background jobs with SIGINT ignored, nohup what it runs with SIGHUP, and children inherit
# that; tests that press Ctrl-C, close a terminal or have a file read again need the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Before any test imports numpy or onnxruntime, and as in a worker: one thread for numpy, and no reports.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The hybrid folder of the demo model, made by the product's own pull. Read only."""
    return demo_models_dir() / MODEL
