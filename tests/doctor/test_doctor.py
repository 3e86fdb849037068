"""`rkserve doctor --deep`: what it writes, what a crash or a hang costs, and its turn on the NPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from server.registry.record import RECORD_FILE
from server.scheduling.npu_lock import NpuLock, default_lock_path
from tests.doctor.command import TIMEOUT_S, doctor, environment
from tests.doctor.test_probes import ALL, a_board
from tests.rkllm.board import Board
from tests.server.cli.command import COMMAND


def left_running(board: Board) -> list[int]:
    """Return the processes that were started for this board: of others' tests there may be some, too."""
    mine = environment(board)["XDG_CONFIG_HOME"]
    return [
        process.pid
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("XDG_CONFIG_HOME") == mine
    ]


def test_a_report_a_record_and_a_table(tmp_path: Path) -> None:
    board = a_board(tmp_path, {}, feed_last=True)
    module = board.sysroot / "sys/module/rknpu"
    module.mkdir(parents=True)
    (module / "version").write_text("0.9.8\n")
    (board.models / "m" / RECORD_FILE).write_text('{"hashes": {"m.rkllm": "ab"}}')
    done = subprocess.run(
        [*COMMAND, "doctor", "--deep", "m"],
        cwd=board.directory, env=environment(board), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rkllm: {last_token_cached: true}" in done.stderr
    header, *rows = [line for line in done.stdout.splitlines() if line.strip()]
    assert header.split()[:2] == ["PROBE", "RESULT"]
    assert [row.split()[0] for row in rows] == list(ALL)
    assert "rkllm.last_token_cached: true" in rows[0]
    (path,) = board.directory.glob("rkserve-doctor-m-*.json")
    report = json.loads(path.read_text())
    assert report["library"] == "librkllmrt 1.3.1"
    assert report["board"]["npu_driver"] == "0.9.8"
    assert report["load"]["dtype"] == "W8A8"
    assert report["model"]["file"] == "m.rkllm"
    assert any("rkllm-runtime version: 1.3.1" in line for line in report["log"])
    record = json.loads((board.models / "m" / RECORD_FILE).read_text())
    assert record["hashes"] == {"m.rkllm": "ab"}
    assert record["probes"]["outcomes"] == ALL | {"prompt_size": "otherwise"}
    assert record["probes"]["settings"] == {"rkllm.last_token_cached": True}


@pytest.mark.parametrize(
    ("fault", "says"),
    [("segv", "crashed (SIGSEGV)"), ("exit", "ended with status"), ("hang", "gave no sign")],
)
def test_a_probe_that_ends_the_library_costs_itself(tmp_path: Path, fault: str, says: str) -> None:
    # Only the question for a thought has this text.
    faults = [{"at": "token", "kind": fault, "when": "9.11"}]
    board = a_board(tmp_path, {}, faults=faults)
    examined = doctor(board, "m", "--probe-timeout", "10")
    assert examined.code == 0, examined.said
    assert examined.outcomes == ALL | {"skip_special_token": "failed"}
    assert says in examined.finding("skip_special_token")["finding"]
    assert [entry["call"] for entry in board.calls("rkllm_init")].count("rkllm_init") >= 4
    assert not left_running(board)


def test_where_probes_fail_it_does_not_say_that_all_is_well(tmp_path: Path) -> None:
    # Every answer of the first library crashes, of the second only the one to a question for a thought.
    for name, when, code, failed in (("all", "", 1, list(ALL)), ("one", "9.11", 0, ["skip_special_token"])):
        board = a_board(tmp_path / name, {}, faults=[{"at": "token", "kind": "segv", "when": when}])
        done = subprocess.run(
            [*COMMAND, "doctor", "--deep", "m"],
            cwd=board.directory, env=environment(board), capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "nothing is to be set" not in done.stderr
        (said,) = [line for line in done.stderr.splitlines() if "these probes failed" in line]
        assert set(said.partition("for: ")[2].split(", ")) <= set(failed)
        assert ("no probe of m succeeded" in done.stderr) == (name == "all")


def test_a_fault_the_library_reports_ends_its_process(tmp_path: Path) -> None:
    board = a_board(tmp_path, {}, faults=[{"at": "token", "kind": "submit", "when": "9.11"}])
    examined = doctor(board, "m")
    assert examined.outcomes == ALL | {"skip_special_token": "failed"}
    assert "failed to submit" in examined.finding("skip_special_token")["finding"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"faults": [{"at": "load", "kind": "segv"}]}, "crashed (SIGSEGV) while loading the model"),
        ({"init_error": "npu_memory"}, "memory"),
        ({"toolkit": "1.2.2", "faults": [{"at": "load", "kind": "exit"}]}, "while loading the model"),
    ],
)
def test_a_model_that_does_not_load(tmp_path: Path, script: dict[str, Any], says: str) -> None:
    board = a_board(tmp_path, {}, **script)
    examined = doctor(board, "m")
    assert examined.code == 1
    assert examined.said.count("Traceback") == 0
    assert says in examined.said.splitlines()[-1]
    assert says in examined.report["refused"]
    assert set(examined.outcomes.values()) == {"failed"}
    assert not (board.models / "m" / RECORD_FILE).exists()
    assert len(board.calls("rkllm_init")) == 1  # it was not tried again


def test_it_waits_for_its_turn_on_the_npu(tmp_path: Path) -> None:
    board = a_board(tmp_path, {})
    lock = NpuLock(default_lock_path(board.sysroot))
    with lock:
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--deep", "m", "--json"],
            cwd=board.directory, env=environment(board), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert "waiting for the NPU" in process.stderr.readline()
        assert board.calls("rkllm_init") == []
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert len(json.loads(out)["findings"]) == len(ALL)


def test_it_holds_the_lock_while_it_probes_and_a_server_waits(tmp_path: Path) -> None:
    board = a_board(tmp_path, {}, load_ms=300)
    with board.serve() as server:
        process = subprocess.Popen(
            [*COMMAND, "doctor", "--deep", "m"],
            cwd=board.directory, env=environment(board), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                if "probing prompt_size" in line:
                    break
            assert server.says("m", "Count.").startswith("one, two")
            rest = process.stderr.read()
    assert process.returncode == 0, rest
    runs = board.calls("rkllm_run", "run_end", "run_refused")
    assert not [entry for entry in runs if entry["call"] == "run_refused" and "submit" in entry["line"]]
    pids = [entry["pid"] for entry in runs]
    assert pids.index(pids[-1]) == len(pids) - 2 and len(set(pids)) == 2  # the server's one run came last


def test_too_little_memory_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    board = a_board(tmp_path, {"memory_mb": 8000})
    examined = doctor(board, "m")
    assert examined.code == 1
    assert "8512 MB" in examined.said and "Stop the server" in examined.said
    assert board.calls() == []


def test_what_cannot_be_probed(tmp_path: Path) -> None:
    board = a_board(tmp_path, {})
    (board.models / "m" / "m.rkllm").unlink()
    for model, says in (
        ("m", "not installed"),
        ("smollm2-135m", "hybrid engine"),
        ("nobody", "There is no model"),
    ):
        examined = doctor(board, model)
        assert examined.code == 1
        assert says in examined.said and "Traceback" not in examined.said


def test_of_an_adapter_the_base_is_probed(tmp_path: Path) -> None:
    board = a_board(tmp_path, {})
    lora = {"base": "m", "file": "m.rkllm"}
    board.add("poet", {"file": None, "runtime": None, "eos": None, "rkllm": {"lora": lora}})
    (board.models / "m" / "m.rkllm").unlink()
    examined = doctor(board, "poet")
    assert examined.code == 1
    assert "poet is an adapter on m, which is probed in its place" in examined.said
    assert "m is not installed" in examined.said
