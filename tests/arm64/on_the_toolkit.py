"""The vendor's rknn-toolkit-lite2 itself, on the stand-in for librknnrt; test_rknn_toolkit runs this."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.base import BackendError, EngineLost
from backends.hybrid.folder import read_folder
from backends.hybrid.rknnlite import RknnLiteExecutor
from backends.rknn.lite import LIBRARY
from backends.spec import HybridOptions
from tests.backends.hybrid.asking import PROMPT, answer, open_model
from tests.standin.rknn.model_file import add_rknn_builds, calls
from tests.tiny import tiny_folder

ON_LITE = HybridOptions(executor="rknnlite", core_mask="0_1")
with_library = pytest.mark.skipif("TOOLKIT_ALONE" in os.environ, reason="without the library")
without_library = pytest.mark.skipif("TOOLKIT_ALONE" not in os.environ, reason="with the library")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return add_rknn_builds(tiny_folder(tmp_path / "tiny", layers=1, tied_lm_head=False))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RKNN_STANDIN_LOG", str(tmp_path / "calls.jsonl"))
    return tmp_path / "calls.jsonl"


def load(folder: Path, wanted: str | None = None) -> RknnLiteExecutor:
    read = read_folder(folder, executor="rknn")
    # With the mask auto it calls rknn_set_core_mask not at all.
    return RknnLiteExecutor(read, lambda done, what: None, core_mask="0", wanted=wanted)


@with_library
def test_the_same_answer_as_on_onnxruntime(folder: Path, log: Path) -> None:
    model = open_model(folder, hybrid=ON_LITE)
    assert model.info.runtime == "librknnrt 2.5.0 (rknn-toolkit-lite2)"
    assert answer(model, PROMPT)[0] == answer(open_model(folder), PROMPT)[0] != ""
    model.close()
    assert {call["mask"] for call in calls(log, "rknn_set_core_mask")} == {3}
    assert {call["length"] for call in calls(log, "rknn_run")} >= {1, 32}
    assert len(calls(log, "rknn_destroy")) == len(calls(log, "rknn_init")) == 2


@with_library
def test_a_version_that_is_not_wanted(folder: Path, log: Path) -> None:
    with pytest.raises(BackendError, match=r"has loaded 2.5.0") as caught:
        load(folder, ">=2.6")
    assert caught.value.code == "runtime_version_mismatch"
    assert len(calls(log, "rknn_destroy")) == 1


@with_library
@pytest.mark.parametrize("fault", ["rknn_init:1=-6", "rknn_init:2=-3", "rknn_set_core_mask:1=-5"])
def test_what_fails_at_loading(folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with pytest.raises(BackendError, match="init_runtime returned -1") as caught:
        load(folder)
    assert caught.value.code == "load_failed"


@with_library
def test_a_file_that_is_no_model(folder: Path) -> None:
    executor_of = read_folder(folder, executor="rknn")
    (folder / executor_of.builds[0].file).write_bytes(b"<html>")
    with pytest.raises(BackendError, match="init_runtime returned -1"):
        RknnLiteExecutor(executor_of, lambda done, what: None)


@with_library
@pytest.mark.parametrize(
    "fault", ["rknn_inputs_set:2=-8", "rknn_outputs_get:2=-9", "rknn_set_input_shapes:1=-1"]
)
def test_what_fails_in_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model = open_model(folder, hybrid=ON_LITE)
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with pytest.raises(EngineLost, match=r"segment_00\d.rknn: rknn-toolkit-lite2 returned nothing"):
        answer(model, PROMPT)
    model.close()


@with_library
def test_a_run_s_return_code_is_lost_on_it(folder: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2.5.0 goes on after rknn_run has failed: the reason to run segments without it."""
    model = open_model(folder, hybrid=ON_LITE)
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", "rknn_run:3=-2")
    answer(model, PROMPT)
    assert [call["returns"] for call in calls(log, "rknn_run")].count(-2) == 1
    model.close()


@without_library
def test_no_library(folder: Path) -> None:
    assert not Path(LIBRARY).exists()
    with pytest.raises(BackendError, match=f"init_runtime returned -1.*{LIBRARY}") as caught:
        load(folder)
    assert caught.value.code == "load_failed"
