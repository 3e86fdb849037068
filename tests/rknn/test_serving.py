"""`rkserve serve` on a made-up board with an NPU: hybrid models on the stand-in for librknnrt."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path
from typing import Any

import openai
import pytest

from server.scheduling.npu_lock import NpuLock, default_lock_path
from tests.rkllm.board import Board
from tests.serving import PATIENCE
from tests.standin.rknn.build import build
from tests.standin.rknn.model_file import add_rknn_builds, calls
from tests.tiny import tiny_folder

QUESTION = "the capital of this question"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_rknn_builds(tiny_folder(tmp_path_factory.mktemp("tiny"), tied_lm_head=False))


@pytest.fixture
def board(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board with an NPU and a librknnrt; one model for the NPU, and the same for the CPU."""
    board = Board(tmp_path)
    (board.sysroot / "sys/module/rknpu").mkdir(parents=True)
    build(into=board.runtimes / "2.5.0")
    monkeypatch.setenv("RKNN_STANDIN_LOG", str(tmp_path / "rknn.jsonl"))
    monkeypatch.setenv("RKNN_STANDIN_ALIGN", "64")
    add(board, folder, "npu", hybrid={"core_mask": "0_1"})
    add(board, folder, "cpu", hybrid={"executor": "onnxruntime"})
    return board


def add(board: Board, folder: Path, model: str, **keys: Any) -> None:
    shutil.copytree(folder, board.models / model / "f")
    board.add_entry(
        model,
        {
            "backend": "hybrid",
            "folder": "f",
            "template": "chatml",
            "eos": ["<|im_end|>"],
            "context_length": 512,
            "max_tokens": 16,
            "memory_mb": 100,
            "license": {"id": "Apache-2.0"},
            **keys,
        },
    )


def test_the_npu_is_used_where_there_is_one(board: Board, tmp_path: Path) -> None:
    with board.serve() as server:
        answer = server.ask("npu", QUESTION, temperature=0)
        assert answer.system_fingerprint == "hybrid-librknnrt-2.5.0"
        assert answer.choices[0].message.content
        assert answer.choices[0].message.content == server.says("cpu", QUESTION, temperature=0)
        assert server.model("npu")["runtime"] == "librknnrt 2.5.0"
        assert server.model("npu")["warnings"] == []
    log = tmp_path / "rknn.jsonl"
    assert {call["mask"] for call in calls(log, "rknn_set_core_mask")} == {3}
    # The worker has given everything back when it ended.
    assert [call["memory_left"] for call in calls(log, "rknn_destroy")] == [0] * 4


@pytest.mark.parametrize("lacking", ["npu", "library", "builds"])
def test_auto_runs_on_the_cpu_where_something_lacks(board: Board, tmp_path: Path, lacking: str) -> None:
    if lacking == "npu":
        shutil.rmtree(board.sysroot / "sys")
    elif lacking == "library":
        shutil.rmtree(board.runtimes)
    else:
        shutil.rmtree(board.models / "npu" / "f")
        tiny_folder(board.models / "npu" / "f", tied_lm_head=False)
    with NpuLock(default_lock_path(board.sysroot)), board.serve() as server:
        answer = server.ask("npu", QUESTION, temperature=0)
        assert str(answer.system_fingerprint).startswith("hybrid-onnxruntime-")
    assert calls(tmp_path / "rknn.jsonl") == []


def test_it_waits_for_the_npu_and_the_cpu_s_model_does_not(board: Board) -> None:
    with board.serve() as server, ThreadPoolExecutor(1) as thread:
        with NpuLock(default_lock_path(board.sysroot)):
            asked = thread.submit(server.says, "npu", QUESTION, temperature=0)
            said = server.says("cpu", QUESTION, temperature=0)
            with pytest.raises(StillWaiting):
                asked.result(timeout=0.5)
        assert asked.result(timeout=60 * PATIENCE) == said


def test_a_version_the_entry_does_not_want(board: Board, folder: Path) -> None:
    add(board, folder, "newer", runtime=">=2.6", hybrid={"executor": "rknn"})
    with board.serve() as server:
        with pytest.raises(openai.APIStatusError) as caught:
            server.ask("newer")
        assert (caught.value.status_code, caught.value.code) == (503, "runtime_version_mismatch")
        assert "librknnrt.so: version 2.5.0, not" in caught.value.message
        assert server.says("npu", QUESTION)


@pytest.mark.parametrize(
    ("fault", "code"), [("rknn_run:9=crash", "backend_crashed"), ("rknn_run:9=-2", "backend_crashed")]
)
def test_a_worker_that_dies_on_the_npu(
    board: Board, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    monkeypatch.setenv("RKNN_STANDIN_FAULTS", fault)
    with board.serve() as server:
        for _ in range(2):  # the second from a new worker
            with pytest.raises(openai.APIStatusError) as caught:
                server.ask("npu", QUESTION)
            assert (caught.value.status_code, caught.value.code) == (500, code)
        assert server.says("cpu", QUESTION)


def test_a_library_without_zero_copy_and_no_toolkit(board: Board, tmp_path: Path) -> None:
    build(omit=["rknn_set_io_mem"], into=board.runtimes / "2.5.0")
    with board.serve() as server:
        with pytest.raises(openai.APIStatusError) as caught:
            server.ask("npu", QUESTION)
        assert (caught.value.status_code, caught.value.code) == (503, "load_failed")
        assert "rknn-toolkit-lite2 is needed" in caught.value.message
    assert calls(tmp_path / "rknn.jsonl") == []
