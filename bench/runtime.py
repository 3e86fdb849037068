"""Tokens from the vendor's library to a client through the rkllm backend, beside other designs in one run.

The library is the stand-in (tests/standin/rkllm), which plays numbered tokens at a given pace and tells the
times of its own callbacks in them. Subjects: the whole server; a C++ program that calls the library and
writes each token to the socket; the design of the vendor's demo. What is measured, and how, is bench.relay's.
Run it as `python -m bench.runtime`; `--help` tells the options.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.bystanders import Bystanders
from bench.processes import Server, free_port, python, serving
from bench.relay import PACED, Series, compare, rows
from bench.report import Budget, Figure, Report, median, percentile
from bench.runtime_files import Files, RuntimeScript, write_files
from tests.standin.rkllm.build import SOURCES, compiler_command

OURS, LOOP, POLLING = "rkserve", "C++ loop", "polling thread"
SUBJECTS = (OURS, LOOP, POLLING)
_FIRST_TOKENS = 8
_FREE_FACTOR = 10


def build_loop(directory: Path) -> Path:
    """Compile bench/runtime_loop.cpp; return the program."""
    program = directory / "runtime_loop"
    source = Path(__file__).with_name("runtime_loop.cpp")
    command = [
        *compiler_command(),
        "-std=c++17",
        "-O2",
        f"-I{SOURCES}",
        str(source),
        "-ldl",
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    return program


@contextmanager
def servers(subjects: Sequence[str], files: Files, loop: Path) -> Iterator[dict[str, Server]]:
    """Run every subject on the model of `files` until the block ends."""
    with ExitStack() as stack:
        started = {}
        for name in subjects:
            port = free_port()
            where = [str(port), str(files.library), str(files.model)]
            if name == OURS:
                env = files.environment() | {"RKSERVE_PORT": str(port)}
                server = serving(python("-P", "-m", "server.cli", "serve"), port, "/ready", env)
            elif name == LOOP:
                server = serving([str(loop), *where], port)
            else:
                server = serving(python("-m", "bench.runtime_polling", *where), port)
            started[name] = stack.enter_context(server)
        yield started


def run(options: argparse.Namespace) -> Report:
    """Measure everything and return the report."""
    report = Report("Runtime: tokens from the (stand-in) library to a client, one event a token")
    bystanders = Bystanders()
    many = options.tokens * _FREE_FACTOR
    with tempfile.TemporaryDirectory(prefix="rkserve-bench-") as scratch:
        place = Path(scratch)
        loop = build_loop(place)
        slow = write_files(place / "paced", PACED, [_FIRST_TOKENS, options.tokens])
        fast = write_files(place / "free", 0, [many])
        with servers(options.subjects, slow, loop) as running:
            first = compare(
                running, RuntimeScript(_FIRST_TOKENS, PACED, 0), 1, options.first_rounds, bystanders
            )
            paced = compare(running, RuntimeScript(options.tokens, PACED, 0), 1, options.rounds, bystanders)
        with servers(options.subjects, fast, loop) as running:
            free = compare(running, RuntimeScript(many, 0, 0), 1, options.rounds, bystanders)
    report.rows += rows("2,000 tok/s, 1 client", paced) + rows("no delay, 1 client", free)
    report.notes += [f"{name}: {series.faults[0]}" for name, series in paced.items() if series.faults]
    report.notes.append(bystanders.note())
    report.crowd = bystanders.crowd
    for name, series in first.items():
        report.figures += _first_token(name, series)
    if OURS in options.subjects:
        report.figures += _budgeted(paced[OURS], free[OURS], first[OURS])
    return report


def _first_token(name: str, series: Series) -> list[Figure]:
    delays = [timing.first_after_callback_ms for timing in series.timings]
    budget = Budget(5) if name == OURS else None
    what = f"{name}: first token over the library's first callback"
    return [Figure(what, median(delays), "ms", budget, f"p95 {percentile(delays, 0.95):.2f}")]


def _budgeted(paced: Series, free: Series, first: Series) -> list[Figure]:
    spoilt = [text for series in (first, paced, free) for text in series.faults]
    ratio = paced.middle(lambda t: t.client_rate / t.raw_rate)
    rate = free.middle(lambda t: t.client_rate)
    return [
        Figure(f"{OURS}: client's rate over raw rate at 2,000 tok/s", ratio, "", Budget(0.95, at_least=True)),
        Figure(f"{OURS}: rate with no delay", rate, "tok/s", Budget(12_000, at_least=True)),
        Figure(f"{OURS}: CPU a token at 2,000 tok/s", median(paced.cpu_us), "us", Budget(200)),
        Figure(f"{OURS}: CPU a token with no delay", median(free.cpu_us), "us", Budget(100)),
        Figure(
            f"{OURS}: answers with text lost, doubled or merged",
            float(len(spoilt)),
            "",
            Budget(0),
            spoilt[0] if spoilt else "",
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.runtime", description=__doc__)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument(
        "--tokens", type=int, default=4000, help="of a paced answer; ten times that with no delay"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first-rounds", type=int, default=30, help="short answers for the first token")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(argv)
    report = run(options)
    report.print()
    report.write(options.json)


if __name__ == "__main__":
    main()
