"""What the command and the process in the toolkit's environment say to each other, as lines of JSON.

Neutral: knows neither the toolkit nor the engine, since both sides import it.
"""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built. segments: which ones, by index, rising; their .onnx is that of variant fp32.

    work: the directory the .rknn files are written into. token_ids: a text, as long as all lengths together.
    prompts, steps: after the build let simulator and onnxruntime continue each prompt by so many tokens and
    compare them; that needs every segment built in the process. No prompts: not done.
    """

    folder: str
    work: str
    target: str
    lengths: list[int]
    segments: list[int]
    token_ids: list[int]
    prompts: list[list[int]]
    steps: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """What is being done. done: how many segments are built."""

    done: int
    what: str


class Built(msgspec.Struct, frozen=True, tag="built"):
    """A segment's file stands complete in the work directory.

    cosine: the least over all rows of all outputs at all lengths, simulator against onnxruntime, found in
    `where`. finite: whether every value of the simulator's is a number.
    """

    segment: int
    cosine: float
    where: str
    finite: bool


class Continued(msgspec.Struct, frozen=True, tag="continued"):
    """How many greedy tokens of all prompts were the same on both, until the first that differed in each."""

    same: int
    of: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The work cannot go on. what: one sentence for a person."""

    what: str


Message = Step | Built | Continued | Failed


def built_name(segment: int) -> str:
    """Return the name of a segment's file in the work directory."""
    return f"segment_{segment:03d}.rknn"
