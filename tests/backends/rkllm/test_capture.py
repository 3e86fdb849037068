"""Capturing what C code prints, in a process of its own, as a worker is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.backends.rkllm.clib import compile_library
from tests.serving import PATIENCE

PRINTS = """
#include <stdio.h>
#include <stdlib.h>
void out(int n) { for (int i = 0; i < n; i++) printf("out %d\\n", i); }
void half(void) { printf("no line end"); }
void err(void) { fprintf(stderr, "err\\n"); }
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    library = compile_library(tmp_path / "libprints.so", PRINTS)
    start = "import ctypes, os, sys\nfrom backends.rkllm.capture import Capture\n"
    start += f"c = ctypes.CDLL({str(library)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", start + script],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )


def test_lines_are_kept_and_passed_on_although_c_buffers_them(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
with Capture() as capture:
    c.out(2)
    place = capture.mark()
    c.err(); c.half()
    print(capture.since(0), capture.since(place))
    capture.sync(); capture.sync()
    c.out(1)
print("after")
""",
    )
    assert done.stdout.splitlines() == [
        "['out 0', 'out 1', 'err', 'no line end'] ['err', 'no line end']",
        "after",
    ]
    assert done.stderr.splitlines() == ["out 0", "out 1", "err", "no line end", "out 0"]


def test_very_many_lines_all_pass_and_the_first_and_last_are_kept(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
with Capture() as capture:
    c.err()
    place = capture.mark()
    c.out(20000)
    lines = capture.since(place)
    print(len(lines), lines[0], lines[499], lines[500], lines[-1])
    later = capture.mark()
    c.out(700)
    for lines in capture.since(later), capture.since(place):
        print(len(lines), lines[0], lines[-1])
""",
    )
    assert done.stdout.splitlines() == [
        "1000 out 0 out 499 out 19500 out 19999",
        "700 out 0 out 699",
        "700 out 0 out 699",
    ]
    assert done.stderr.splitlines()[1:20001] == [f"out {number}" for number in range(20000)]


def test_python_s_own_output_is_not_delayed(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
capture = Capture()
capture.start()
print("a traceback", file=sys.stderr)
os._exit(3)
""",
    )
    assert (done.returncode, done.stderr) == (3, "a traceback\n")


def test_a_closed_stderr_stops_nothing(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
read, write = os.pipe()
os.dup2(write, 2); os.close(write); os.close(read)
import signal; signal.signal(signal.SIGPIPE, signal.SIG_IGN)
with Capture() as capture:
    c.out(3)
    print(capture.since(0))
""",
    )
    assert done.stdout == "['out 0', 'out 1', 'out 2']\n"
