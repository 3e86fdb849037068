"""The environment of rknn-toolkit2: a Python of its own, since the toolkit wants an older numpy.

Made with uv from a list with hashes, without root and without torch, whose two names the toolkit looks up are
stood in for. An environment that has the toolkit already, whoever made it, is used as it is.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from convert.errors import ConvertError
from convert.folder import check_free_space, work_folder
from convert.package import uv_program
from convert.pip_settings import uv_settings
from convert.tied import tied
from convert.writer import Progress

TOOLKIT = "2.5.0"
NEEDED_BYTES = 800_000_000  # what is fetched and, for a moment beside it, what is unpacked
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_PYTHONS = ((3, 11), (3, 12))  # for which there are wheels of the toolkit and of its numpy
_LINES_SHOWN = 6
_ASK = "import importlib.metadata as m; print(m.version('rknn-toolkit2'))"


def default_environment() -> Path:
    """Return where the environment is kept if nobody names a place."""
    from platformdirs import user_cache_path

    return user_cache_path("rkserve") / f"rknn-toolkit2-{TOOLKIT}"


def python_of(environment: Path) -> Path:
    """Return the path of an environment's interpreter, whether or not it is there."""
    return environment / "bin" / "python"


def ready_environment(environment: Path, progress: Progress) -> Path:
    """Return the interpreter of the environment, which is made if there is nothing at that path.

    Raises ConvertError: for a place that holds something else, another toolkit, no room, no index.
    """
    environment = Path(os.path.abspath(environment))
    if not environment.exists() or (environment.is_dir() and not any(environment.iterdir())):
        _make(environment, progress)
    found = _toolkit(python_of(environment))
    if found != TOOLKIT:
        what = "holds no environment with rknn-toolkit2" if found is None else f"has rknn-toolkit2 {found}"
        raise ConvertError(
            f"{environment} {what}, and {TOOLKIT} is needed. Remove that folder, or name another with --env: "
            "the environment is then made there."
        )
    return python_of(environment)


def _make(environment: Path, progress: Progress) -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ConvertError(
            f"rknn-toolkit2 needs a PC with x86-64 Linux, this is {sys.platform} on {platform.machine()}. "
            "Build there and copy the folder here."
        )
    check_free_space(environment, NEEDED_BYTES)
    uv = uv_program()
    variables, arguments = uv_settings(os.environ)
    python = sys.executable if sys.version_info[:2] in _PYTHONS else "3.12"  # which uv finds or fetches
    with work_folder(environment.with_name(f".{environment.name}.partial")) as partial:
        cache = partial / "cache"  # on the same disk, so that files are linked and stand there once

        def uv_run(what: str, *command: str) -> None:
            progress(None, what)
            shown = [uv, *command, "--cache-dir", str(cache), "--color", "never"]
            done = subprocess.run(
                tied(shown),
                cwd=partial,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            if done.returncode != 0:
                lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
                raise ConvertError(
                    f"The environment of rknn-toolkit2 could not be made in {environment}. Check that this "
                    "machine reaches the package index and has room, then start again. uv said: "
                    f"{' / '.join([line for line in lines if line][-_LINES_SHOWN:])}"
                )

        made = partial / "environment"
        uv_run("making an environment", "venv", "--no-project", "--python", python, str(made))
        uv_run(
            f"installing rknn-toolkit2 {TOOLKIT} in {environment} (170 MB to fetch, 560 MB on the disk)",
            *("pip", "install", "--python", str(python_of(made)), "--no-deps", "--only-binary", ":all:"),
            *("--require-hashes", "--requirement", str(_REQUIREMENTS), *arguments),
        )
        shutil.rmtree(cache, ignore_errors=True)
        if environment.is_dir():
            environment.rmdir()
        made.rename(environment)


def _toolkit(python: Path) -> str | None:
    """Return the version of the toolkit an interpreter has, None if it has none or does not run."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
