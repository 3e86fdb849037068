"""A Debian machine that really boots systemd: a directory made by debootstrap, started by systemd-nspawn.

The directory is made once and kept, with a wheelhouse of what the lock file names; each machine is a copy,
with a loopback for a network and nothing else. Commands enter its name spaces from here. Needs root.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import platformdirs

from tests.locks import held

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PYTHON = "3.11"  # of that suite
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "python3", "python3-venv", "ca-certificates", "curl",
    "libgomp1", "procps",
)  # fmt: skip
REQUIREMENTS = ROOT / "requirements" / "server.txt"
GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35, 36)  # manylinux_2_N that run there
SETUP_S = 1800
BOOT_S = 60.0
REBOOT = 133  # nspawn's exit status where its container wants to be started again


class CannotSetUp(Exception):
    """The machine cannot be made here; the message says what is missing."""


@cache
def base() -> Path:
    """Return the directory of root and wheelhouse, made if it is not there: 500 MB, some minutes.

    Raises CannotSetUp.
    """
    if os.uname().machine != "x86_64" or os.getuid() != 0:
        raise CannotSetUp("booting a Debian for amd64 needs such a machine, and root")
    _need({"debootstrap": "debootstrap", "systemd-nspawn": "systemd-container"})
    key = hashlib.sha256(repr((SUITE, PACKAGES, REQUIREMENTS.read_bytes())).encode()).hexdigest()[:16]
    home = platformdirs.user_cache_path("rkserve") / "systemd"
    with held(home.with_suffix(".lock")):
        directory = home / key
        if not (directory / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            directory.mkdir(parents=True)
            try:
                _fetch_wheels(directory / "wheels")
                _run(
                    ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE,
                     str(directory / "root"), "http://deb.debian.org/debian"]
                )  # fmt: skip
                shutil.rmtree(directory / "root/var/cache/apt/archives")
            except subprocess.CalledProcessError as error:
                said = ((error.stderr or "") + (error.stdout or ""))[-500:]
                raise CannotSetUp(f"{' '.join(error.cmd[:3])} ... failed: {said}") from error
            (directory / "complete").touch()
    return directory


def _need(programs: dict[str, str]) -> None:
    missing = [package for program, package in programs.items() if shutil.which(program) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise CannotSetUp(f"there is no apt-get to install {', '.join(missing)} with")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_S)
        if done.returncode != 0:
            raise CannotSetUp(f"{', '.join(missing)} could not be installed: {done.stderr[-500:]}")


def _fetch_wheels(directory: Path) -> None:
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in GLIBCS]
    python = getattr(sys, "_base_executable", sys.executable)  # the environment itself has no pip
    _run(
        [
            python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--require-hashes", f"--python-version={PYTHON}", "--implementation=cp",
            "--abi=cp311", "--abi=abi3", "--abi=none",
            *platforms, "--platform=manylinux2014_x86_64", "-r", str(REQUIREMENTS), "-d", str(directory),
        ]
    )  # fmt: skip


class Machine:
    """A machine that can be booted. `directory` is its root file system, to be written to while it is off."""

    def __init__(self, directory: Path, wheels: Path, console: Path) -> None:
        self.directory = directory
        self._wheels = wheels
        self._console = console
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def boot(self) -> None:
        """Start it, and wait until systemd has started what it starts."""
        with self._console.open("ab") as console:
            self._nspawn = subprocess.Popen(
                [
                    "systemd-nspawn", "--quiet", f"--directory={self.directory}", "--boot", "--register=no",
                    "--keep-unit", "--console=pipe", "--private-network", f"--bind-ro={self._wheels}:/wheels",
                    f"--machine={self.directory.parent.name[:40]}",
                ],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        until(self._find_leader, BOOT_S, "the container's first process")
        until(lambda: self._state() in ("running", "degraded"), BOOT_S, "the end of the boot")

    def off(self) -> None:
        """Shut it down as a person does, and wait for that."""
        self._shut_down("poweroff")

    def reboot(self) -> None:
        """Restart it as a person does."""
        assert self._shut_down("reboot") == REBOOT
        self.boot()

    def kill(self) -> None:
        """Cut its power."""
        if self._nspawn is not None:
            self._nspawn.kill()
            self._nspawn.wait()
            self._nspawn = None

    def run(self, command: str | Sequence[str], timeout: float = 120) -> str:
        """Run a shell's command in it as root, and return its output. AssertionError if it fails."""
        done = self.tried(command, timeout)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}\n{self.journal()[-4000:]}"
        return done.stdout

    def tried(self, command: str | Sequence[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell's command in it as root, whatever comes of it."""
        return subprocess.run(
            self.inside(command), capture_output=True, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def inside(self, command: str | Sequence[str]) -> list[str]:
        """Return a command of this system that runs one in the machine."""
        text = command if isinstance(command, str) else shlex.join(command)
        environment = ["HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        environment += ["LANG=C.UTF-8", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels"]
        environment += ["PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore"]
        enter = ["nsenter", f"--target={self._leader}", "--all", "--wd=/", "env", "-i", *environment]
        return [*enter, "sh", "-c", text]

    def journal(self, unit: str = "rkserve", *options: str) -> str:
        """Return what the journal of this boot has of a unit."""
        command = [
            "journalctl",
            f"--unit={unit}",
            "--boot",
            "--no-pager",
            "--output=short-monotonic",
            *options,
        ]
        return self.tried(command).stdout

    def show(self, name: str, unit: str = "rkserve") -> str:
        """Return a property of a unit."""
        return self.run(["systemctl", "show", unit, f"--property={name}", "--value"]).strip()

    def _shut_down(self, how: str) -> int:
        assert self._nspawn is not None
        self.tried(["systemctl", how, "--no-block"])
        status = self._nspawn.wait(BOOT_S)
        self._nspawn = None
        return status

    def _find_leader(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, self._console.read_text(errors="replace")
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        if not children:
            return False
        self._leader = int(children[0])
        return Path(f"/proc/{self._leader}/comm").read_text().strip() == "systemd"

    def _state(self) -> str:
        return self.tried(["systemctl", "is-system-running"], 20).stdout.strip()


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until something holds that no event tells of: another machine's state."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds:g} s"
        time.sleep(0.1)


@contextmanager
def machine(scratch: Path) -> Iterator[Machine]:
    """Yield a machine of its own, off; afterwards it and its directory are gone. Raises CannotSetUp."""
    made = base()
    root = scratch / "root"
    _run(["cp", "--archive", "--reflink=auto", str(made / "root"), str(root)])
    one = Machine(root, made / "wheels", scratch / "console.log")
    try:
        yield one
    finally:
        one.kill()
        shutil.rmtree(root, ignore_errors=True)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SETUP_S)
