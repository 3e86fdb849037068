"""Which library a model gets, and what is said where none fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from server.registry import load_registry
from server.settings import Settings
from tests.demo_model import ROOT
from tests.rkllm.board import Board
from tests.server.cli.command import rkserve
from tests.standin.rkllm.model_file import write_model


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


def test_the_second_server_of_the_page_on_boards(tmp_path: Path) -> None:
    page = (Path(ROOT) / "docs" / "on-a-board.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    second_file = tmp_path / "second.yaml"
    second_file.write_text(example, encoding="utf-8")
    board = Board(tmp_path / "board")
    for version in ("1.3.0", "1.3.1"):
        board.add_runtime(version)
    # Two of these do not fit into one domain.
    script: dict[str, Any] = {"npu_mb": 2500, "when_short": "error"}
    packaged = board.add_packaged("minicpm5-2b", **script)
    entries = load_registry(Settings(models_dir=board.models, models_file=second_file)).entries
    elsewhere = {"rkllm", "license", "measured"}
    assert entries["minicpm5-2b"].model_dump(exclude=elsewhere) == packaged.model_dump(exclude=elsewhere)
    write_model(entries["older"].path(board.models), **script)
    with (
        board.serve() as first,
        board.serve(models_file=second_file, preload="minicpm5-2b,older") as second,
    ):
        asked = [(first, "minicpm5-2b"), (second, "minicpm5-2b"), (second, "older")] * 2
        answers = [server.ask(model) for server, model in asked]
        assert [answer.choices[0].message.content for answer in answers] == ["OK."] * 6
        versions = [answer.system_fingerprint for answer in answers[:3]]
        assert versions == [f"rkllm-librkllmrt-{version}" for version in ("1.3.1", "1.3.1", "1.3.0")]
    domains = [call["base_domain_id"] for call in board.calls("rkllm_init")]
    assert sorted(domains) == [0, 1, 2]


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


def test_a_library_that_prints_much_is_checked_all_the_same(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    much = {"lines": [f"I rkllm: layer {number}" for number in range(1500)]}
    board.add("strict", toolkit="1.2.2", log=much)
    board.add("right", log=much)
    with board.serve() as server:
        with pytest.raises(openai.InternalServerError) as caught:
            server.ask("strict")
        assert (caught.value.status_code, caught.value.code) == (503, "runtime_version_mismatch")
        assert server.says("right") == "OK."
        assert server.model("right")["details"]["toolkit"] == "1.3.1"
        assert not any("did not print" in warning for warning in server.model("right")["warnings"])


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
