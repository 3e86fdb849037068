"""buildah and podman for linux/arm64, with a store of their own, and a base image that stands for Debian's.

No registry is asked: the base image is made of Debian's packages by debootstrap, without what Debian's slim
images lack, too. On a PC the kernel hands programs for aarch64 to qemu (binfmt_misc), so that everything in a
container is emulated. What is fetched is kept; containers and built images are not.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from tests.locks import held

BASE = "docker.io/library/debian:bookworm-slim"
SUITE = "bookworm"
PACKAGES = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "podman": "podman",
    "runc": "runc",
    "qemu-aarch64-static": "qemu-user-static",
    "update-binfmts": "binfmt-support",
}
BINFMT = Path("/proc/sys/fs/binfmt_misc")
NOT_SLIM = ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man")
PASSING = ("debootstrap", "var/cache/apt/archives", "var/lib/apt/lists", "var/log")
SETUP_S = 1800


class CannotSetUp(Exception):
    """No image can be built or run here; the message says what is missing."""


@dataclass(frozen=True)
class Engine:
    """The two programs, on a store. Every path is absolute."""

    store: Path

    def buildah(self, *arguments: str, timeout_s: float = SETUP_S) -> str:
        """Run a command of buildah; return what it prints. Raises CannotSetUp with the end of its log."""
        return _run(["buildah", *self._places, *arguments], timeout_s)

    def podman(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run a command of podman; return what it prints. Raises CannotSetUp with the end of its log."""
        return _run(self.podman_command(*arguments), timeout_s)

    def podman_command(self, *arguments: str) -> list[str]:
        """Return the words of a command of podman. It needs no systemd."""
        manager = ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
        return ["podman", *self._places, *manager, *arguments]

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Mount an image to look into it; yields its root."""
        root = self.podman("image", "mount", image).strip()
        try:
            yield Path(root)
        finally:
            self.podman("image", "unmount", image)

    @property
    def _places(self) -> list[str]:
        return ["--root", str(self.store / "root"), "--runroot", str(self.store / "run")]


def needed_here() -> list[str]:
    """Return the options of podman that only an emulated machine or a test needs.

    Its own timer of the health check would need systemd.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={files}:{files}"]
    return [
        *limits,
        "--no-healthcheck",
        "--platform=linux/arm64",
        "--pull=never",
        "--env=QEMU_CPU=cortex-a76",
    ]


@cache
def engine() -> Engine:
    """Return the engine, with the base image in its store: two to five minutes once. Raises CannotSetUp."""
    _need_programs()
    _need_emulator()
    store = platformdirs.user_cache_path("rkserve") / "docker"
    made = Engine(store)
    with held(store.with_suffix(".lock")):
        store.mkdir(parents=True, exist_ok=True)
        if not made.buildah("images", "--quiet", "--filter", f"reference={BASE}").strip():
            _make_base(made)
    return made


def _need_programs() -> None:
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if os.getuid() != 0:
        raise CannotSetUp("an image is built as root here, and this is not root")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise CannotSetUp(f"no {', '.join(missing)}, and no apt-get to install them")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--no-install-recommends", *missing])


def _need_emulator() -> None:
    if platform.machine() == "aarch64":
        return
    if not (BINFMT / "register").exists():
        _run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
    entry = BINFMT / "qemu-aarch64"
    if not entry.exists():
        _run(["update-binfmts", "--enable", "qemu-aarch64"])
    if "enabled" not in entry.read_text() or "F" not in entry.read_text().split("flags:")[1].split()[0]:
        raise CannotSetUp(f"{entry}: the emulator is not there for programs in a container (flag F)")


def _make_base(engine: Engine) -> None:
    """Make the base image. Its root is removed, also when that fails."""
    root = engine.store / "base"
    archive = engine.store / "base.tar"
    shutil.rmtree(root, ignore_errors=True)
    try:
        # What it mounts in the root it mounts in a namespace of its own: nothing stays, however it ends.
        own_mounts = ["unshare", "--mount", "--propagation", "private"]
        _run([*own_mounts, "debootstrap", "--arch=arm64", "--variant=minbase", SUITE, str(root)])
        for place in (*NOT_SLIM, *PASSING):
            _empty(root / place)
        without = "".join(f"path-exclude /{place}/*\n" for place in NOT_SLIM)
        (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(without)
        _run(["tar", "--one-file-system", "-C", str(root), "-cf", str(archive), "."])
        container = engine.buildah("from", "--arch", "arm64", "scratch").strip()
        engine.buildah("add", container, str(archive), "/")
        engine.buildah("config", "--arch", "arm64", "--os", "linux", "--cmd", "bash", container)
        engine.buildah("commit", "--rm", container, BASE)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)


def _empty(directory: Path) -> None:
    for entry in directory.glob("*"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _run(command: list[str], timeout_s: float = SETUP_S) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "QEMU_CPU": "cortex-a76"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)
    if done.returncode != 0:
        raise CannotSetUp(f"{' '.join(command[:8])} ... failed: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout
