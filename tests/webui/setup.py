"""Sets up what the tests with Open WebUI need: Open WebUI itself, Chromium, and what drives it.

Open WebUI is installed once into an environment of its own in the user's cache, some 3 GB, and kept. What
cannot be set up here is said by CannotSetUp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

import platformdirs

from tests.demo_model import KEPT
from tests.locks import held

VERSION = "0.12.4"
NODE = Path(__file__).with_name("node")
# torch first, which Open WebUI's requirements are then content with, instead of choosing a larger build.
PACKAGES = (["torch==2.13.0"], [f"open-webui=={VERSION}"])
INSTALL_S = 1800
ROOM_BYTES = 5 * 2**30


class CannotSetUp(Exception):
    """Something is missing and cannot be had here; the message says what."""


@cache
def open_webui() -> Path:
    """Return the command of an installed Open WebUI, installing it if it is not there: some minutes, 3 GB."""
    if sys.version_info >= (3, 13):
        raise CannotSetUp(f"Open WebUI {VERSION} needs Python 3.11 or 3.12")
    home = platformdirs.user_cache_path("rkserve") / "open-webui"
    directory = home / VERSION
    done = directory / "complete"
    with held(home.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            if (room := shutil.disk_usage(home).free) < ROOM_BYTES:
                raise CannotSetUp(f"Open WebUI takes 3 GB, and {home} has room for {room / 2**30:.1f}")
            venv.create(directory, with_pip=True)
            for packages in PACKAGES:
                _run([str(directory / "bin" / "python"), "-m", "pip", "install", "-q", *packages], INSTALL_S)
            done.touch()
    return directory / "bin" / "open-webui"


@cache
def browser() -> Path:
    """Return Chromium, installed from Debian if it is not there and may be."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        _apt("chromium")
        found = shutil.which("chromium")
    if found is None:
        raise CannotSetUp("no Chromium: install Debian's chromium")
    return Path(found)


@cache
def driver() -> list[str]:
    """Return the command of the page's driver, whose packages are installed if they are not there."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise CannotSetUp("Node is not installed here (Debian: apt-get install nodejs npm)")
    lock, installed = NODE / "package-lock.json", NODE / "node_modules" / ".package-lock.json"
    with held(KEPT / "npm-webui.lock"):
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            _run([npm, "--prefix", str(NODE), "ci"], INSTALL_S)
    return [node, str(NODE / "driver.mjs")]


def _apt(package: str) -> None:
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise CannotSetUp(f"no {package}: install Debian's package of that name")
    # Another one may be at it.
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    _run([*apt, "update"], INSTALL_S)
    _run([*apt, "install", "-y", "--no-install-recommends", package], INSTALL_S)


def _run(command: list[str], seconds: float) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotSetUp(f"{' '.join(command[:6])} ... took more than {seconds:g} s") from None
    if done.returncode != 0:
        raise CannotSetUp(f"{' '.join(command[:6])} ... failed: {(done.stdout + done.stderr)[-600:]}")


def prepare() -> None:
    """Set up all of it. Raises CannotSetUp."""
    driver()
    browser()
    open_webui()
