"""Which library a model gets, and what is said where none fits."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest

from tests.rkllm.board import Board
from tests.server.cli.command import rkserve


def test_only_an_old_runtime_is_there_and_then_the_right_one(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime("1.2.3")
    board.add("m")
    with board.serve() as server:
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError) as caught:
                server.ask("m", stream=stream)
            error = caught.value
            assert (error.status_code, error.code) == (503, "runtime_version_mismatch")
            assert error.response.headers["x-should-retry"] == "false"
            assert "found: librkllmrt.so: version 1.2.3, not <1.4,==1.3.1,>=1.3" in error.message
        assert server.model("m")["warnings"] == [error.body["message"]]  # type: ignore[index]  # the error's JSON
        assert board.calls() == []  # it was never loaded
        board.add_runtime("1.3.1")
        assert server.says("m") == "OK."
        assert not any("librkllmrt" in warning for warning in server.model("m")["warnings"])


def test_two_runtimes_at_once(tmp_path: Path) -> None:
    board = Board(tmp_path)
    for version in ("1.2.3", "1.3.0", "1.3.1"):
        board.add_runtime(version)
    board.add("older", {"runtime": "==1.3.0"})
    board.add("newer")
    board.add("newest", {"runtime": ">=1.3"})
    board.add("none", {"runtime": "==1.3.7"})
    with board.serve() as server:
        versions = {
            model: server.ask(model).system_fingerprint for model in ("older", "newer", "newest", "older")
        }
        assert versions == {
            "older": "rkllm-librkllmrt-1.3.0",
            "newer": "rkllm-librkllmrt-1.3.1",
            "newest": "rkllm-librkllmrt-1.3.1",
        }
        assert all(server.model(model)["loaded"] for model in versions)
        assert len({call["pid"] for call in board.calls("rkllm_init")}) == 3
        assert len(board.calls("rkllm_init")) == 3  # the fourth answer came from a loaded model
        with pytest.raises(openai.InternalServerError) as caught:
            server.ask("none")
        for version in ("1.2.3", "1.3.0", "1.3.1"):
            assert f"librkllmrt.so: version {version}" in caught.value.message


def test_a_model_of_another_toolkit(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("strict", toolkit="1.2.2")
    board.add("warned", {"runtime_check": "warn"}, toolkit="1.2.2", mismatch="fine")
    with board.serve() as server:
        with pytest.raises(openai.InternalServerError) as caught:
            server.ask("strict")
        assert (caught.value.status_code, caught.value.code) == (503, "runtime_version_mismatch")
        assert "rkllm-toolkit 1.2.2" in caught.value.message
        assert "runtime_check: warn" in caught.value.message
        assert server.says("warned") == "OK."
        assert any("rkllm-toolkit 1.2.2" in warning for warning in server.model("warned")["warnings"])


def test_the_table_of_models_shows_the_runtime_and_the_last_load(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    board.add_runtime()
    board.add_packaged("minicpm5-2b")
    flags = ("--models-dir", str(board.models), "--runtime-dirs", str(board.runtimes))
    before = rkserve("models", "--json", *flags, home=tmp_path)
    row = json.loads(before.stdout)[0]
    assert (row["runtime"], row["details"], row["warnings"]) == ("librkllmrt 1.3.1", {}, [])
    with board.serve() as server:
        server.says("minicpm5-2b")
    after = rkserve("models", *flags, home=tmp_path)
    assert "librkllmrt 1.3.1" in after.stdout.splitlines()[1]
    assert "npu_driver 0.9.8" in after.stderr
    assert "toolkit 1.3.1" in after.stderr
    missing = rkserve("models", *flags[:2], home=tmp_path)
    assert "minicpm5-2b cannot be loaded. No librkllmrt.so" in missing.stderr
