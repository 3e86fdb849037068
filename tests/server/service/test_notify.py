"""What is told over NOTIFY_SOCKET, and to whom."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from server.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_messages_arrive_by_either_kind_of_address(abstract: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{path}" if abstract else path)
        manager.settimeout(5)
        notifier = Notifier(f"@{path}" if abstract else path)
        notifier.ready("on 8000")
        notifier.alive()
        notifier.status("two\nlines")
        notifier.stopping(10.0)
        notifier.reloading()
        notifier.close()
        notifier.alive()  # nobody hears that, and nothing breaks
        heard = [manager.recv(4096).decode() for _ in range(5)]
    assert heard[:4] == [
        "READY=1\nSTATUS=on 8000",
        "WATCHDOG=1",
        "STATUS=two lines",
        "STOPPING=1\nEXTEND_TIMEOUT_USEC=10000000",
    ]
    reloading, _, since = heard[4].partition("\nMONOTONIC_USEC=")
    assert reloading == "RELOADING=1"
    assert 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - int(since) / 1e6 < 60


def test_the_variables_are_taken_from_those_who_come_after() -> None:
    own = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.from_environment(own)
    assert (notifier.listening, notifier.watchdog_s, own) == (True, 3.0, {"A": "b"})
    notifier.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "3000000"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ],
)
def test_no_watchdog_of_anybody_else_is_fed(environment: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environment)
    assert notifier.watchdog_s is None
    notifier.close()


def test_that_nobody_listens_or_reads_is_no_error(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    silent = Notifier(path)
    silent.alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        for _ in range(10_000):  # far more than the queue of a socket holds
            silent.alive()
    silent.close()
