"""From a refusal that says what to install to an answer: one server, never restarted."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.rkllm.board import Board
from tests.server.cli.command import rkserve
from tests.standin.rkllm.build import build


def test_a_running_server_takes_up_what_is_installed(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add("m", answers=["Sea."])
    board.add_runtime("1.2.3")
    with board.serve() as server:
        with pytest.raises(openai.InternalServerError) as refused:
            server.ask("m")
        assert refused.value.status_code == 503
        body = refused.value.body
        assert isinstance(body, dict) and body["code"] == "runtime_version_mismatch"
        assert "version 1.2.3, not" in body["message"]
        assert "rkserve runtime install FILE|URL" in body["message"]
        done = rkserve(
            "runtime", "install", str(build("1.3.1")), home=tmp_path, **board.environment(),
            RKSERVE_MODELS_DIR=str(board.models),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "used by m from the next load on" in done.stderr
        assert server.says("m") == "Sea."
        assert server.model("m")["runtime"] == "librkllmrt 1.3.1"
