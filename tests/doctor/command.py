"""Runs `rkserve doctor` on a made-up board."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.rkllm.board import Board
from tests.server.cli.command import COMMAND
from tests.serving import PATIENCE, clean_environment

TIMEOUT_S = 240 * PATIENCE


@dataclass(frozen=True)
class Examination:
    """What a run of the command came to. report: what --json printed, {} where that was nothing."""

    code: int
    said: str
    report: dict[str, Any]

    @property
    def outcomes(self) -> dict[str, str]:
        return {finding["probe"]: finding["outcome"] for finding in self.report["findings"]}

    def finding(self, probe: str) -> dict[str, Any]:
        return next(finding for finding in self.report["findings"] if finding["probe"] == probe)


def environment(board: Board) -> dict[str, str]:
    return clean_environment(
        **board.environment(),
        RKSERVE_MODELS_DIR=str(board.models),
        XDG_CONFIG_HOME=str(board.directory / "config"),
    )


def doctor(board: Board, model: str, *options: str) -> Examination:
    """Examine a model to the end."""
    done = subprocess.run(
        [*COMMAND, "doctor", "--deep", model, "--json", *options],
        cwd=board.directory,
        env=environment(board),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Examination(done.returncode, done.stderr, json.loads(done.stdout) if done.stdout else {})
