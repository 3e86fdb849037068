"""The process in the toolkit's environment: given a job, read message by message, ended with the command.

What the toolkit prints goes into a log file; its last lines of errors are shown if the work fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Generator, Iterable
from pathlib import Path

import msgspec

from convert.errors import ConvertError
from convert.rknn.messages import Failed, Job, Message
from convert.tied import tied

LOG = "build.log"
_ROOT = Path(__file__).resolve().parents[2]  # of the packages backends and convert
_START = Path(__file__).parent / "inside" / "start.py"
_LINES_SHOWN = 4
_SHOWN_BYTES = 64 * 1024  # of the log's end
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r"E |\w*Error\b")


def messages(python: Path, job: Job) -> Generator[Message, None, None]:
    """Run a job and yield what it reports. The process ends with the iterator, whoever closes it.

    Raises ConvertError where the work failed or the process died.
    """
    log = Path(job.work) / LOG
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, log.open("wb") as output:
        try:
            # -I: nothing of the user's variables and folders. cwd: the toolkit may leave files.
            process = subprocess.Popen(
                tied([str(python), "-I", str(_START), str(_ROOT), str(writing)]),
                cwd=job.work,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
            )
        finally:
            os.close(writing)
        with process:
            try:
                failed = yield from _read(process, pipe, job)
            except BaseException:
                process.kill()
                raise
    if failed is not None or process.returncode != 0:
        raise _error(failed, process.returncode, log)


def _read(
    process: subprocess.Popen[bytes], pipe: Iterable[bytes], job: Job
) -> Generator[Message, None, Failed | None]:
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at its start, which its return code tells
    decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
    failed: Failed | None = None
    for line in pipe:
        message = decoder.decode(line)
        if isinstance(message, Failed):
            failed = message
        else:
            yield message
    return failed


def _error(failed: Failed | None, code: int, log: Path) -> ConvertError:
    if failed is not None:
        what = failed.what
    elif code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        what = f"it was ended by {name}" + (", mostly a lack of memory" if name == "SIGKILL" else "")
    else:
        what = f"it ended with code {code}"
    lines = _last_errors(log)
    said = f" It printed: {' / '.join(lines)}." if lines else ""
    return ConvertError(
        f"rknn-toolkit2 could not build the folder: {what}.{said} Segments that were finished are kept; the "
        f"same command goes on from there. Everything it printed stands in {log}."
    )


def _last_errors(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SHOWN_BYTES))
        text = _COLOURS.sub("", file.read().decode(errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]", text)]
    return [line for line in lines if _ERROR.match(line)][-_LINES_SHOWN:]
