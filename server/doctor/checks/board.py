"""Whether this is a board that models are made for. A PC is fine, too: it has its CPU."""

from __future__ import annotations

from collections.abc import Iterator

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Find the chip."""
    board = facts.board
    name = board.model or "a board without a name"
    if board.rk3588:
        yield ok(f"{name} ({board.soc})")
    elif board.soc is not None:
        yield advice(
            f"{name} has the chip {board.soc}: .rkllm and .rknn files made for RK3588 do not load on it",
            "take models that were converted for this chip, or smollm2-135m, which runs on the CPU",
            See.NO_BOARD,
        )
    else:
        yield ok(
            f"{board.model or 'a machine without an NPU'} ({board.machine}): models of the hybrid engine run "
            "on its CPU; .rkllm files need an RK3588 board"
        )
