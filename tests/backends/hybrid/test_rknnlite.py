"""Segments through rknn-toolkit-lite2, on a stand-in for the package, and each way it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.base import BackendError, EngineLost
from backends.hybrid.folder import read_folder
from backends.hybrid.rknnlite import RknnLiteExecutor
from backends.spec import HybridOptions
from tests.backends.hybrid.asking import PROMPT, answer, open_model
from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds
from tests.tiny import tiny_folder

STANDIN = Path(__file__).parents[2] / "standin" / "rknn_toolkit_lite2"


@pytest.fixture(autouse=True)
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STANDIN))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return add_rknn_builds(tiny_folder(tmp_path / "tiny", tied_lm_head=False))


def script(folder: Path, segment: int, **keys: Any) -> None:
    (folder / f"segment_{segment:03}.rknn.json").write_text(json.dumps(keys))


def log(folder: Path, call: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.glob("*.log")) for line in path.read_text().splitlines()]
    return [entry for entry in map(json.loads, lines) if entry["call"] == call]


def on_lite(folder: Path, **options: Any) -> RknnLiteExecutor:
    return RknnLiteExecutor(read_folder(folder, executor="rknn"), lambda done, what: None, **options)


def test_the_same_answer_as_on_onnxruntime(folder: Path) -> None:
    model = open_model(folder, hybrid=HybridOptions(executor="rknnlite", core_mask="2"))
    assert model.info.runtime == "librknnrt 2.5.0 (rknn-toolkit-lite2)"
    assert answer(model, PROMPT)[0] == answer(open_model(folder), PROMPT)[0] != ""
    model.close()
    assert [entry["core_mask"] for entry in log(folder, "init_runtime")] == [4] * 4
    assert len(log(folder, "release")) == 4


def test_it_stands_in_for_a_library_without_zero_copy(folder: Path) -> None:
    library = str(build(omit=["rknn_create_mem"]))
    model = open_model(folder, hybrid=HybridOptions(library=library))
    assert model.info.runtime == "librknnrt 2.5.0 (rknn-toolkit-lite2)"
    model.close()
    with pytest.raises(BackendError, match=r"lacks rknn_create_mem.* executor: rknnlite") as caught:
        open_model(folder, hybrid=HybridOptions(executor="rknn", library=library))
    assert caught.value.code == "load_failed"


@pytest.mark.parametrize(
    ("keys", "code", "words"),
    [
        ({"load": -1}, "model_corrupt", "returned -1"),
        ({"init": -1}, "load_failed", "init_runtime returned -1"),
    ],
)
def test_a_segment_that_does_not_load(folder: Path, keys: dict[str, Any], code: str, words: str) -> None:
    script(folder, 2, **keys)
    with pytest.raises(BackendError, match=rf"segment_002.rknn.*{words}") as caught:
        on_lite(folder)
    assert caught.value.code == code
    assert len(log(folder, "release")) == 3  # the two before it, and itself


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [
        ("API: 2.0.0 (x)", "runtime_version_mismatch", "has loaded 2.0.0"),
        ("raise", "load_failed", "not tell"),
    ],
)
def test_a_version_that_is_not_wanted(folder: Path, version: str, code: str, words: str) -> None:
    script(folder, 0, version=version)
    with pytest.raises(BackendError, match=words) as caught:
        on_lite(folder, wanted=">=2.3")
    assert caught.value.code == code
    assert len(log(folder, "release")) == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [("none", "returned nothing"), ("raise", "RuntimeError"), ("fewer", "where meta2.json")],
)
def test_a_run_that_fails(folder: Path, what: str, words: str) -> None:
    script(folder, 1, runs=["ok", what])
    model = open_model(folder, hybrid=HybridOptions(executor="rknnlite"))
    with pytest.raises(EngineLost, match=rf"segment_001.rknn.* {words}"):
        answer(model, PROMPT)
    model.close()


def test_without_the_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rknnlite.api", None)
    with pytest.raises(BackendError, match=r"extra rknn .*Or install a librknnrt") as caught:
        on_lite(folder)
    assert caught.value.code == "load_failed"
