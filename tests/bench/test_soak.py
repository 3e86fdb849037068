"""A short soak with few clients: that it passes, and that its checks see what they are there for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.soak.checks import Tally, Wrong, check_error, check_id, check_text
from bench.soak.http import Head
from tests.demo_model import ROOT

BUSY = {"retry-after": "3"}
FINAL = {"x-should-retry": "false"}


def error(code: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": "m", "type": "t", "param": None, "code": code} | more}


@pytest.mark.slow
@pytest.mark.smoke
def test_a_short_soak(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--seconds", "10", "--warm-up", "4", "--clients", "30", "--kill-every", "4"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.soak", *arguments, "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sum(json.loads(figures.read_text())["kills"].values()) >= 1


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (503, BUSY, error("server_busy")),
        (500, FINAL, error("backend_crashed")),
        (500, FINAL, error("backend_timeout")),
        (503, FINAL, error("load_failed")),
        (404, {}, error("model_not_found")),
    ],
)
def test_proper_errors(status: int, headers: dict[str, str], body: Any) -> None:
    assert check_error(status, headers, body) == body["error"]["code"]


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (503, {}, error("server_busy")),
        (503, {"retry-after": "0"}, error("server_busy")),
        (503, {"retry-after": "soon"}, error("server_busy")),
        (503, {"retry-after": "61"}, error("server_busy")),
        (503, BUSY | FINAL, error("server_busy")),
        (429, BUSY, error("server_busy")),
        (500, {}, error("backend_crashed")),
        (503, FINAL, error("backend_crashed")),
        (500, {}, {"detail": "Internal Server Error"}),
        (500, {}, "Internal Server Error"),
        (400, {}, error("invalid_request", message="")),
        (400, {}, error("invalid_request", more=1)),
    ],
)
def test_improper_errors(status: int, headers: dict[str, str], body: Any) -> None:
    with pytest.raises(Wrong):
        check_error(status, headers, body)


def test_texts_and_ids() -> None:
    check_text("a b", "a b", whole=True)
    check_text("a", "a b", whole=False)
    for text, whole in (("a", True), ("a b c", True), ("b", False), ("a b c", False)):
        with pytest.raises(Wrong):
            check_text(text, "a b", whole=whole)
    check_id(Head(200, {"x-request-id": "one"}), "one")
    with pytest.raises(Wrong):
        check_id(Head(200, {"x-request-id": "two"}), "one")
    tally = Tally()
    tally.one_id("chatcmpl-1")
    with pytest.raises(Wrong):
        tally.one_id("chatcmpl-1")
