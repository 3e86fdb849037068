"""What is read of a board, from trees as boards have them, and from broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.metrics.board import Board, read_board
from tests.server.metrics.boards import rock5c, write


def test_a_good_board(tmp_path: Path) -> None:
    board = read_board(rock5c(tmp_path))
    assert board.npu_load == {"0": 0.74, "1": 0.0, "2": 1.0}
    assert board.frequencies == {
        "npu": 1e9,
        "gpu": 3e8,
        "ddr": 2.112e9,
        "cpu0": 1.8e9,
        "cpu4": 2.352e9,
        "cpu6": 2.304e9,
    }
    assert board.temperatures == {"soc-thermal": 45.307, "bigcore0-thermal": 46.307, "npu-thermal": 47.307}
    assert board.memory_total == 8134248 * 1024
    assert board.memory_available == 4 * 2**30


def test_a_machine_that_is_no_board(tmp_path: Path) -> None:
    assert read_board(tmp_path) == Board()


def test_this_machine_is_read_without_a_fault() -> None:
    board = read_board(Path("/"))
    assert board.memory_total is not None and board.memory_available is not None
    assert 0 < board.memory_available <= board.memory_total


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("NPU load:  Core0:  0%, Core1:  0%, Core2:  5%,\n", {"0": 0.0, "1": 0.0, "2": 0.05}),
        ("NPU load:  37%\n", {"all": 0.37}),
        ("", {}),
        ("not what was expected\n", {}),
    ],
)
def test_the_load_of_another_place_and_form(tmp_path: Path, text: str, load: dict[str, float]) -> None:
    write(tmp_path / "proc/rknpu/load", text)
    assert read_board(tmp_path).npu_load == load


def test_what_cannot_be_read_is_absent_and_the_rest_is_there(tmp_path: Path) -> None:
    rock5c(tmp_path)
    for broken in (
        "sys/kernel/debug/rknpu/load",
        "sys/class/thermal/thermal_zone1/temp",
        "sys/class/devfreq/dmc/cur_freq",
    ):
        (tmp_path / broken).unlink()
        (tmp_path / broken).mkdir()  # reading fails, for root too
    write(tmp_path / "sys/class/devfreq/fb000000.gpu/cur_freq", "<unsupported>\n")
    board = read_board(tmp_path)
    assert board.npu_load == {}
    assert set(board.frequencies) == {"npu", "cpu0", "cpu4", "cpu6"}
    assert set(board.temperatures) == {"soc-thermal", "npu-thermal"}


def test_sensors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"sys/class/thermal/thermal_zone{number}/type", "acpitz\n")
        write(tmp_path / f"sys/class/thermal/thermal_zone{number}/temp", f"-{number}000\n")
    assert read_board(tmp_path).temperatures == {"acpitz": 0.0, "thermal_zone1": -1.0}
