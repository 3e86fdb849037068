"""The conductor with processes that do what a test says: every way a process of probes can end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backends.probing import Plan, Texts
from backends.spec import ModelSpec
from server.probing.conductor import Conducted, Limits, conduct

# Each start of it plays the next script of the list: lines it sends, then how it ends.
PLAYER = """
import os, pathlib, socket, sys, time
scripts, count = eval(sys.argv[1]), pathlib.Path(sys.argv[2])
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
lines, end = scripts[number]
sock = socket.socket(fileno=int(sys.argv[4]))
sock.makefile("rb").readline()
print("a line of the library", number, flush=True)
for line in lines:
    sock.sendall(line.encode() + b"\\n")
if end == "hang":
    time.sleep(600)
if end == "crash":
    os.abort()
if end == "kill":
    os.kill(os.getpid(), 9)
os._exit(0)
"""
LOADING = '{"type":"Loading","options":{}}'
LOADED = '{"type":"Loaded","details":{"dtype":"W8A8"},"lines":[]}'
NOT_LOADED = '{"type":"NotLoaded","code":"insufficient_memory","message":"No room."}'
UP = [LOADING, LOADED]
PLAN = Plan(
    spec=ModelSpec(model_id="m", backend="rkllm", path="/m", context_length=8, max_tokens=8, eos=[]),
    texts=Texts(chat=[]),
    probes=["a", "b", "c"],
)


def started(probe: str) -> str:
    return f'{{"type":"Started","probe":"{probe}"}}'


def found(probe: str) -> list[str]:
    return [
        started(probe),
        f'{{"type":"Finding","probe":"{probe}","outcome":"as assumed","finding":"x"}}',
    ]


def run(tmp_path: Path, *scripts: tuple[list[str], str], probe_s: float = 30) -> tuple[Conducted, int]:
    """Conduct; return what came of it and how many processes there were."""
    count = tmp_path / "count"
    command = (sys.executable, "-c", PLAYER, repr(list(scripts)), str(count))
    conducted = conduct(PLAN, Limits(load_s=30, probe_s=probe_s), lambda text: None, command)
    return conducted, int(count.read_text())


def outcomes(conducted: Conducted) -> list[tuple[str, str]]:
    return [(finding.probe, finding.outcome) for finding in conducted.findings]


def test_one_process_does_for_all(tmp_path: Path) -> None:
    conducted, processes = run(tmp_path, ([*UP, *found("a"), *found("b"), *found("c")], "exit"))
    assert processes == 1
    assert outcomes(conducted) == [(probe, "as assumed") for probe in "abc"]
    assert (conducted.refused, conducted.details) == (None, {"dtype": "W8A8"})
    assert conducted.log == ["a line of the library 0"]


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("crash", "crashed (SIGABRT)"),
        ("kill", "want of memory"),
        ("hang", "gave no sign"),
        ("exit", "status 0"),
    ],
)
def test_the_probes_after_one_that_ends_its_process_run_in_another(
    tmp_path: Path, end: str, says: str
) -> None:
    first = [*UP, *found("a"), started("b")]
    conducted, processes = run(tmp_path, (first, end), ([*UP, *found("c")], "exit"), probe_s=5)
    assert processes == 2
    assert outcomes(conducted) == [("a", "as assumed"), ("b", "failed"), ("c", "as assumed")]
    assert says in conducted.findings[1].finding
    assert conducted.refused is None


@pytest.mark.parametrize(
    "second", [([LOADING], "crash"), ([LOADING, NOT_LOADED], "exit"), ([], "crash")], ids=str
)
def test_a_model_that_loads_no_more_costs_what_is_left_and_no_more(
    tmp_path: Path, second: tuple[list[str], str]
) -> None:
    conducted, processes = run(tmp_path, ([*UP, *found("a"), started("b")], "crash"), second)
    assert processes == 2
    assert outcomes(conducted) == [("a", "as assumed"), ("b", "failed"), ("c", "failed")]
    assert conducted.findings[2].finding.startswith("Not run.")
    assert conducted.refused is None


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (([LOADING, NOT_LOADED], "exit"), "No room."),
        (([LOADING], "crash"), "crashed (SIGABRT) while loading the model"),
        (([], "exit"), "ended before it had begun"),
    ],
)
def test_a_model_that_never_loads_is_tried_once(
    tmp_path: Path, script: tuple[list[str], str], says: str
) -> None:
    conducted, processes = run(tmp_path, script)
    assert processes == 1
    assert conducted.refused is not None and says in conducted.refused
    assert outcomes(conducted) == [(probe, "failed") for probe in "abc"]
