"""A segment as steps for native kernels, over the matrices that its quantized graph has stored."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backends.hybrid import program as steps
from convert.graphs import Array, StoredMatrix
from convert.matrices import Part
from convert.quantized_graph import StoredBlocks


class Program:
    """See segments.Writing."""

    def __init__(self, stored: Mapping[str, StoredBlocks]) -> None:
        self._stored = stored
        self._steps: list[steps.AnyStep] = []

    def text(self) -> bytes:
        """The file."""
        whole = steps.Program(version=steps.PROGRAM_VERSION, steps=self._steps)
        return msgspec.json.encode(whole)

    def norm(self, name: str, value: str, weight: Array, eps: float) -> str:
        return self._add(steps.Norm(out=name, x=value, weight=weight.tolist(), eps=eps))

    def add(self, name: str, left: str, right: str) -> str:
        return self._add(steps.Add(out=name, x=left, y=right))

    def multiply(self, name: str, left: str, right: str) -> str:
        return self._add(steps.Multiply(out=name, x=left, y=right))

    def silu(self, name: str, value: str) -> str:
        return self._add(steps.Silu(out=f"{name}_silu", x=value))

    def gelu_tanh(self, name: str, value: str) -> str:
        return self._add(steps.Gelu(out=f"{name}_gelu", x=value))

    def causal_conv(self, name: str, state: str, value: str, kernel: Array) -> str:
        return self._add(steps.Conv(out=name, state=state, x=value, kernel=kernel.tolist()))

    def last_row(self, name: str, value: str) -> str:
        return value  # there is but one

    def products(self, value: str, parts: Mapping[str, Part]) -> None:
        for name in parts:
            self._product(name, value)

    def head(self, name: str, value: str, part: Part, *, table: StoredMatrix | None) -> str:
        return self._product(name, value)

    def _product(self, name: str, value: str) -> str:
        stored = self._stored[name]
        outputs, inputs = stored.shape
        matrix = steps.Matrix(
            bits=stored.bits,
            outputs=outputs,
            inputs=inputs,
            first=stored.first,
            rows=stored.rows,
            values=stored.values,
            scales=stored.scales,
            offsets=stored.offsets,
            in_table=stored.in_table,
        )
        return self._add(steps.Product(out=name, x=value, matrix=matrix))

    def _add(self, step: steps.AnyStep) -> str:
        self._steps.append(step)
        return step.out
