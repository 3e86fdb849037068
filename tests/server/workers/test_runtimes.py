"""Keys under rkllm that nothing honours yet are refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.errors import LoadFailed
from server.settings import Settings
from server.workers.runtimes import Runtimes
from tests.server.scripted import entry


@pytest.mark.parametrize("rkllm", [{"lora": {"base": "other", "file": "adapter.rkllm"}}])
def test_what_is_not_there_yet_is_refused_by_its_name(tmp_path: Path, rkllm: dict[str, Any]) -> None:
    runtimes = Runtimes(Settings(models_dir=tmp_path, runtime_dirs=(tmp_path,)))
    model = entry("board", backend="rkllm", rkllm=rkllm)
    with pytest.raises(LoadFailed, match=next(iter(rkllm))):
        runtimes.choose(model)
    name, problem = runtimes.describe(model)
    assert name is None
    assert problem is not None
    assert next(iter(rkllm)) in problem
