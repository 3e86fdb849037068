"""What a worker prints: logged in lines that cannot pass for others, kept in bounds."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.workers import output
from server.workers.output import KEPT_LINES, MAX_LINE_CHARS, WINDOW_LINES, WorkerOutput
from tests.server.workers.harness import until


class Printed:
    def __init__(self, write_fd: int, reader: WorkerOutput, caplog: pytest.LogCaptureFixture) -> None:
        self._fd = write_fd
        self.reader = reader
        self._caplog = caplog

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    def end(self) -> None:
        os.close(self._fd)
        self.reader.close()

    def logged(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name == output.__name__]


@pytest.fixture
async def printed(caplog: pytest.LogCaptureFixture) -> Printed:
    caplog.set_level(logging.INFO)
    read_fd, write_fd = os.pipe()
    return Printed(write_fd, WorkerOutput(read_fd, "m", 17), caplog)


async def test_lines_are_logged_with_their_worker(printed: Printed) -> None:
    printed.write(b"one\ntw")
    await until(printed.logged)
    assert printed.logged() == ["m[17]: one"]
    printed.write(b"o\n\nthree")
    printed.end()
    assert printed.logged() == ["m[17]: one", "m[17]: two", "m[17]: three"]
    assert printed.reader.tail() == ["one", "two", "three"]


async def test_what_is_left_when_the_worker_has_ended_is_read(printed: Printed) -> None:
    printed.write(b"last words\n")
    printed.end()
    assert printed.reader.tail() == ["last words"]
    printed.reader.close()


async def test_no_line_can_pass_for_another(printed: Printed) -> None:
    printed.write("a\x1b[31mred\x00\x85\u2028 tab\there\n".encode() + b"\xff\xfe\n")
    printed.end()
    assert printed.reader.tail() == [r"a\x1b[31mred\x00\x85\u2028 tab\there", "\ufffd\ufffd"]


async def test_a_progress_bar_is_lines(printed: Printed) -> None:
    printed.write(b"10 %\r20 %\r\ndone\n")
    printed.end()
    assert printed.reader.tail() == ["10 %", "20 %", "done"]


async def test_only_the_last_lines_are_kept(printed: Printed) -> None:
    printed.write(b"".join(b"%d\n" % number for number in range(100)))
    printed.end()
    assert printed.reader.tail() == [str(number) for number in range(100 - KEPT_LINES, 100)]


async def test_forgetting(printed: Printed) -> None:
    printed.write(b"one\n")
    await until(printed.reader.tail)
    printed.reader.forget()
    printed.write(b"two\n")
    printed.end()
    assert printed.reader.tail() == ["two"]


async def test_a_line_without_end_is_cut(printed: Printed) -> None:
    printed.write(b"x" * 50_000)
    await until(printed.reader.tail)
    assert all(len(line) <= MAX_LINE_CHARS for line in printed.reader.tail())
    assert len(printed.reader._partial) <= MAX_LINE_CHARS
    printed.end()


async def test_too_many_lines_are_counted_not_logged(printed: Printed) -> None:
    printed.write(b"".join(b"%d\n" % number for number in range(1000)))
    await until(printed.reader.tail)
    printed.end()
    logged = printed.logged()
    assert len(logged) < 2 * WINDOW_LINES + 3
    counted = [int(line.split(": ")[2].split()[0]) for line in logged if "prints too much" in line]
    lines = [line for line in logged if "prints too much" not in line]
    assert len(lines) + sum(counted) == 1000
    assert printed.reader.tail()[-1] == "999"


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[int]:
    """The read end of a pipe that a process fills as fast as it can."""
    read_fd, write_fd = os.pipe()
    pid = os.posix_spawn(
        "/bin/sh", ["sh", "-c", "exec yes"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 1)]
    )
    os.close(write_fd)
    yield read_fd
    os.kill(pid, 9)
    os.waitpid(pid, 0)


async def test_a_flood_takes_little_of_the_loop(flood: int) -> None:
    reader = WorkerOutput(flood, "m", 17)
    loop = asyncio.get_running_loop()
    begun, cpu = loop.time(), os.times()
    while loop.time() - begun < 1:
        await asyncio.sleep(0.01)
    after = os.times()
    reader.close()
    assert (after.user + after.system) - (cpu.user + cpu.system) < 0.5
