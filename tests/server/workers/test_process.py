"""Processes: started closed off, ended with their group, always reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from server.workers.process import WorkerProcess, describe_exit
from tests.server.workers.harness import children, open_files, until


def python(code: str) -> Sequence[str]:
    return (sys.executable, "-P", "-c", code)


async def run(code: str) -> tuple[int, list[str]]:
    process, sock = WorkerProcess.spawn(python(code), "m")
    with sock:
        return await asyncio.wait_for(process.exited, 10), process.output.tail()


async def test_exit_status_and_output() -> None:
    assert await run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(5)") == (
        5,
        ["out", "err"],
    )


async def test_a_signal_is_a_negative_status() -> None:
    status, _ = await run("import os; os.kill(os.getpid(), 11)")
    assert status == -signal.SIGSEGV


async def test_it_gets_its_socket_and_nothing_else() -> None:
    ours = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        code = (
            "import os, sys; fd = sys.argv[2]; "
            "print(sorted(map(os.readlink, (f'/proc/self/fd/{n}' for n in ('0', fd)))));"
            "print([os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') "
            "if os.path.exists('/proc/self/fd/' + n) and n not in ('0', '1', '2', fd)])"
        )
        status, (first, second) = await run(code)
    finally:
        os.close(ours)
    assert status == 0
    assert first.startswith("['/dev/null', 'socket:[")
    assert second == "[]"


async def test_it_has_a_session_of_its_own() -> None:
    status, lines = await run("import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))")
    assert (status, lines) == (0, ["True"])


@pytest.mark.parametrize("state", ["stopped", "ignoring signals"])
async def test_kill_ends_it_whatever_it_does(state: str) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    process, sock = WorkerProcess.spawn(python(code), "m")
    await until(process.output.tail)
    if state == "stopped":
        os.kill(process.pid, signal.SIGSTOP)
    process.kill()
    assert await asyncio.wait_for(process.exited, 10) == -signal.SIGKILL
    assert process.pid not in children()
    process.kill()  # its number may be another's by now: nothing happens
    sock.close()


async def test_its_children_end_with_it() -> None:
    code = "import os, time; pid = os.fork(); print(pid or time.sleep(1000), flush=True)"
    process, sock = WorkerProcess.spawn(python(code), "m")
    assert await asyncio.wait_for(process.exited, 10) == 0
    child = int(process.output.tail()[0])
    await until(lambda: not _runs(child), "the child's end")
    sock.close()


async def test_without_pidfds_a_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert await run("print('up')") == (0, ["up"])


async def test_what_cannot_be_started_leaves_nothing_behind(tmp_path: Path) -> None:
    files = open_files()
    with pytest.raises(FileNotFoundError):
        WorkerProcess.spawn((str(tmp_path / "absent"),), "m")
    assert open_files() == files


def test_exits_are_described() -> None:
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(-11) == "was killed by SIGSEGV"
    assert "memory" in describe_exit(-9)
    assert describe_exit(-200) == "was killed by signal 200"


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
