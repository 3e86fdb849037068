"""rkserve service, as far as it can be tried without changing this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.cli.command import ROOT, environment, rkserve


def test_a_dry_run_says_everything_and_does_nothing(tmp_path: Path) -> None:
    before = [os.path.lexists(path) for path in ("/etc/rkserve", "/usr/local/bin/rkserve")]
    done = rkserve("service", "install", "--dry-run", "--mdns", "--freq", home=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in (
        "would write /etc/sysusers.d/rkserve.conf",
        "would make the first key in /etc/rkserve/keys, if there is none, and show it",
        "would write /etc/avahi/services/rkserve.service",
        "would run systemctl enable rkserve-freq.service",
    ):
        assert f"rkserve: {line}\n" in done.stderr
    assert done.stdout == ""
    assert [os.path.lexists(path) for path in ("/etc/rkserve", "/usr/local/bin/rkserve")] == before
    gone = rkserve("service", "uninstall", "--dry-run", "--purge", home=tmp_path)
    assert gone.returncode == 0, gone.stderr
    if not any(before):  # a machine without a service, as most that run tests
        gone = rkserve("service", "uninstall", "--dry-run", home=tmp_path)
        assert gone.stderr.startswith("rkserve: nothing of a service is installed here\n")
        assert "stay in" not in gone.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="somebody who is not root is made of root")
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_it_needs_root(command: str, tmp_path: Path) -> None:
    code = (
        "import os, sys; os.geteuid = lambda: 1000; sys.argv = ['rkserve', *sys.argv[1:]]; "
        "from server.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "service", command],
        env=environment(tmp_path) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "rkserve: this changes the system: run it with sudo (--dry-run shows what it does)\n"
    )


@pytest.mark.skipif(os.path.isdir("/run/systemd/system"), reason="systemd runs here")
def test_without_systemd_there_is_no_status(tmp_path: Path) -> None:
    done = rkserve("service", "status", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rkserve: systemd does not run here")
