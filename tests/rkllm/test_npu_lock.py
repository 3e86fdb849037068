"""Two servers on one board take turns on the NPU, which has room for one run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from tests.rkllm.board import Board

RUNS = 4


def test_two_servers_never_run_at_once(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("m", answers=["one two three four five"], token_us=10_000, load_ms=50)
    with board.serve() as one, board.serve() as two, ThreadPoolExecutor(2 * RUNS) as threads:
        # A second run beside a first would be refused by the library and cost the process.
        answers = list(threads.map(lambda server: server.says("m"), [one, two] * RUNS))
    assert answers == ["one two three four five"] * (2 * RUNS)
    ends = {"rkllm_init": "init_end", "rkllm_run": "run_end"}
    entries = board.calls(*ends, *ends.values())
    assert len({entry["pid"] for entry in entries}) == 2
    work = []
    for begin in (entry for entry in entries if entry["call"] in ends):
        end = next(
            entry
            for entry in entries
            if entry["pid"] == begin["pid"]
            and entry["call"] == ends[begin["call"]]
            and entry["ms"] >= begin["ms"]
        )
        work.append((begin["ms"], end["ms"], begin["pid"]))
    assert len(work) == 2 + 2 * RUNS
    for (_, end, _), (begin, _, _) in pairwise(sorted(work)):
        assert begin >= end
