from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from backends.hybrid.kernels import Kernels, best_kernels
from tests.native.build import site_directory


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The path where rkserve_kernels is, importable meanwhile."""
    path = str(site_directory())
    sys.path.insert(0, path)
    importlib.invalidate_caches()
    yield path
    sys.path.remove(path)


@pytest.fixture(params=[1, 2, 3])
def native(site: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The native kernels, with one thread and with more than this machine may have cores."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.0")  # on the path, but not installed
    kernels = best_kernels(request.param)
    assert kernels.name.startswith("rkserve-kernels 0.1.0")
    return kernels
