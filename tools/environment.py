"""Sets up the environment in .venv, or mends it: what `make setup` runs. Does nothing where all is in place.

Needs nothing but Python and pip; up to the check of its version it runs on older Pythons too. What stands in
.venv/.installed tells what the environment was made of: place, Python, locked files.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".uv" / "bin" / "uv"
UV_STAMP = UV.with_name("uv.locked")
LOCKED_UV = ROOT / "requirements" / "uv.txt"
LOCKED = ROOT / "requirements" / "all.txt"
PROJECT = ROOT / "pyproject.toml"
PROBE = "import sys; print(sys.version.split()[0], sys.base_prefix)"
OFFLINE = (
    "The first set-up fetches packages: it needs the internet, or a package index that pip knows (pip "
    "config set global.index-url URL, or PIP_INDEX_URL). What was fetched is kept; start again, and it goes "
    "on. Later starts need no network."
)


class SetupError(Exception):
    """What went wrong, and what to do."""


def main() -> int:
    """Set up the environment; return the exit code."""
    parser = argparse.ArgumentParser(description="Set up or mend the environment.")
    parser.add_argument("environment", help="its directory")
    parser.add_argument("--this-python", action="store_true", help="make it anew if another Python made it")
    arguments = parser.parse_args()
    try:
        set_up(ROOT / arguments.environment, arguments.this_python)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; start again, and it goes on")
        return 130
    return 0


def set_up(environment: Path, this_python: bool) -> None:
    """Make the environment what the locked files say, anew if it was moved or its Python is gone."""
    stamp = environment / ".installed"
    python = probe(environment / "bin" / "python")
    usable = python is not None and not (this_python and python != probe(Path(sys.executable)))
    before = stamp.read_text(encoding="utf-8").splitlines() if stamp.is_file() else []
    usable = usable and before[:1] == [str(environment)]  # scripts in it name its place
    if usable and before == wanted(environment, python):
        return
    if not usable:
        check_version()
    if not uv_in_place():
        fetch_uv()
    variables, more = index_settings()
    if not usable:
        if environment.exists():
            say(f"{environment.name} was moved, or made by another Python: making it anew")
        shutil.rmtree(str(environment), ignore_errors=True)
        run([str(UV), "venv", "--quiet", "--python", sys.executable, str(environment)], variables)
        python = probe(environment / "bin" / "python")
    variables["VIRTUAL_ENV"] = str(environment)
    stamp.write_text("", encoding="utf-8")  # until all is done it vouches for nothing
    say(f"installing what is needed into {environment.name} (a minute or so the first time)")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]  # on a terminal uv shows bars
    sync = ["pip", "sync", *quiet, "--require-hashes", "--compile-bytecode", *more, str(LOCKED)]
    run([str(UV), *sync], variables, OFFLINE)
    say("installing rkserve itself")
    own = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *more, "--editable", str(ROOT)]
    run([str(UV), *own], variables, OFFLINE)
    stamp.write_text("\n".join(wanted(environment, python)), encoding="utf-8")


def wanted(environment: Path, python: str | None) -> list[str]:
    """Return what .installed holds when the environment is in place."""
    return [str(environment), str(python), digest(LOCKED, PROJECT)]


def probe(program: Path, question: str = PROBE) -> str | None:
    """Return what a Python, or another program, says of itself; None if it cannot be run."""
    command = [str(program), question] if question.startswith("--") else [str(program), "-I", "-c", question]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def check_version() -> None:
    """Raise SetupError for a Python that rkserve does not run on."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise SetupError(
            f"this needs Python 3.11, 3.12 or 3.13, and {sys.executable} is {sys.version.split()[0]}. "
            "Name another: make PYTHON=python3.12 serve"
        )


def uv_in_place() -> bool:
    """Return whether the uv of the locked file is there and runs."""
    if not UV_STAMP.is_file() or UV_STAMP.read_text(encoding="utf-8") != digest(LOCKED_UV):
        return False
    return probe(UV, "--version") is not None


def fetch_uv() -> None:
    """Install the locked uv beside the environment, with pip, which every mirror and proxy is set up for."""
    say("fetching the installer (uv)")
    if probe(Path(sys.executable), "import pip; print(pip)") is None:
        raise SetupError(f"{sys.executable} has no pip. On Debian: apt install python3-pip; then start again")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    target = ["--target", str(UV.parent.parent), "-r", str(LOCKED_UV)]
    options = ["--upgrade", "--require-hashes", "--root-user-action=ignore", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "install", *quiet, *options, *target], None, OFFLINE)
    UV_STAMP.write_text(digest(LOCKED_UV), encoding="utf-8")


def index_settings() -> tuple[dict[str, str], list[str]]:
    """Return the environment and arguments that let uv use the package index pip is set up for."""
    sys.path.insert(0, str(ROOT))
    from convert.errors import ConvertError
    from convert.pip_settings import uv_settings

    try:
        return uv_settings(os.environ)
    except ConvertError as error:
        raise SetupError(error.message) from error


def run(command: list[str], variables: dict[str, str] | None, hint: str = "") -> None:
    """Run a step, which prints what goes wrong in it. Raises SetupError."""
    done = subprocess.run(command, cwd=str(ROOT), env=variables, check=False)
    if done.returncode != 0:
        raise SetupError(f"setting up failed; the lines above say why. {hint}".strip())


def digest(*files: Path) -> str:
    """Return a hash of the files' content."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def say(message: str) -> None:
    """Print a line on standard error."""
    print(f"rkserve: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
