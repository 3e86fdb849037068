"""The NPU's lock file among programs, and the server's turn among them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.scheduling.npu_lock import NpuLock, default_lock_path
from server.scheduling.npu_turn import NpuTurn

HOLDER = """
import sys
from pathlib import Path
from server.scheduling.npu_lock import NpuLock
with NpuLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another_program(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_one_program_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = NpuLock(path)
    with held_by_another_program(path) as other:
        assert not lock.try_acquire()
        assert other.stdin is not None
        other.stdin.close()
        lock.acquire()
    assert not NpuLock(path).try_acquire()
    lock.release()
    lock.release()
    with NpuLock(path):
        assert not lock.try_acquire()
    assert lock.try_acquire()
    lock.release()


def test_the_lock_goes_with_the_program_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_by_another_program(path) as other:
        other.kill()
        other.wait()
        assert NpuLock(path).try_acquire()


def test_a_file_that_may_only_be_read_serves(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(mode=0o444)
    tmp_path.chmod(0o555)
    try:
        assert NpuLock(path).try_acquire()
    finally:
        tmp_path.chmod(0o755)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        NpuLock(tmp_path / "lock").try_acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_every_user_finds_the_same_file() -> None:
    assert default_lock_path().name == "rkserve-npu.lock"
    assert default_lock_path().parent in (
        Path("/run/lock"),
        Path("/tmp"),
        Path(os.environ.get("TMPDIR", "/tmp")),
    )


class Turn:
    def __init__(self, path: Path) -> None:
        self.granted = asyncio.Event()
        self.turn = NpuTurn(NpuLock(path), self.granted.set)


async def test_a_free_turn_is_there_at_once(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "lock").turn
    assert turn.request()
    assert not NpuLock(tmp_path / "lock").try_acquire()
    turn.release()
    assert not turn.held
    with NpuLock(tmp_path / "lock"):
        pass


async def test_waiting_for_the_turn_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    made = Turn(tmp_path / "lock")
    with NpuLock(tmp_path / "lock"):
        assert not made.turn.request()
        assert not made.turn.request()  # asks only once
        await asyncio.sleep(0.05)
        assert not made.granted.is_set()
    await asyncio.wait_for(made.granted.wait(), 10)
    assert made.turn.held
    made.turn.release()
    assert made.turn.request()
    made.turn.close()


async def test_a_turn_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    made = Turn(tmp_path / "lock")
    lock = NpuLock(tmp_path / "lock")
    lock.acquire()
    assert not made.turn.request()
    made.turn.close()
    lock.release()
    await asyncio.to_thread(lock.acquire)  # comes after the one that nobody wants any more
    lock.release()
    assert not made.granted.is_set()


async def test_without_a_lock_file_the_server_goes_on(tmp_path: Path) -> None:
    made = Turn(tmp_path / "missing" / "lock")
    assert made.turn.request()
    made.turn.release()
