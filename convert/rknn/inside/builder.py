"""The work in the toolkit's environment: run a text through the folder, build each segment, compare.

Inputs are those a real text gives, recorded while the engine runs it on onnxruntime; one segment is in memory
at a time, unless whole answers are to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from backends.base import BackendError
from backends.hybrid.executor import Array, Executor
from backends.hybrid.folder import HybridFolder, read_folder
from backends.hybrid.forward import Forward
from convert.rknn.inside.compare import least_cosine
from convert.rknn.inside.segments import OnOnnxruntime, Segments
from convert.rknn.inside.toolkit import Simulated, ToolkitFailed
from convert.rknn.messages import Built, Continued, Failed, Job, Message, Step, built_name

Recorded = dict[tuple[int, int], tuple[list[Array], list[Array]]]  # by segment and length: inputs, outputs
Say = Callable[[Message], None]


def run(job: bytes, write: Callable[[bytes], object]) -> None:
    """Do a job that is given as JSON; write messages as lines of JSON."""
    encoder = msgspec.json.Encoder()

    def say(message: Message) -> None:
        write(encoder.encode(message) + b"\n")

    try:
        _work(msgspec.json.decode(job, type=Job), say)
    except (BackendError, ToolkitFailed, ImportError, MemoryError, OSError) as error:
        say(Failed(str(error) or type(error).__name__))
        raise


def _work(job: Job, say: Say) -> None:
    folder = read_folder(Path(job.folder), variant="fp32")
    say(Step(0, "running a text on onnxruntime"))
    recorded = _record(folder, job) if job.segments else {}
    kept: list[Simulated] = []
    for number, index in enumerate(job.segments):
        say(Step(number, f"building segment {index + 1} of {len(folder.builds)}"))
        simulated = _build(folder, job, index)
        say(_compare(folder, job.lengths, index, recorded, simulated))
        if job.prompts:
            kept.append(simulated)
        else:
            simulated.release()
    if job.prompts:
        say(Step(len(job.segments), "continuing prompts in the simulator"))
        say(_continue(folder, job, kept))


def _record(folder: HybridFolder, job: Job) -> Recorded:
    """Run the text in calls of each length, the longest first; keep what is to be compared."""
    recorded: Recorded = {}
    compute = OnOnnxruntime(folder, keep=False)
    wanted = frozenset(job.segments)

    def recording(index: int, inputs: Sequence[Array]) -> Sequence[Array]:
        outputs = compute(index, inputs)
        if index in wanted:
            copies = [array.copy() for array in inputs], [np.array(array) for array in outputs]
            tensors = zip(folder.meta.segments[index].inputs, inputs, strict=True)
            length = next(len(array) for tensor, array in tensors if tensor.role == "hidden")
            recorded[index, length] = copies
        return outputs

    forward = Forward(folder, Segments(folder, job.lengths, recording, "onnxruntime"))
    cache = forward.new_cache()
    rest = np.array(job.token_ids, np.int32)
    for length in reversed(job.lengths):
        now, rest = rest[:length], rest[length:]
        forward.run(now, cache, want_logits=False, every_row=True)
    return recorded


def _build(folder: HybridFolder, job: Job, index: int) -> Simulated:
    """Build one segment; its file gets its name when it is complete."""
    written = Path(job.work) / built_name(index)
    under_way = written.with_suffix(".under_way.rknn")
    simulated = Simulated(
        folder.file(folder.builds[index].file),
        folder.meta.segments[index],
        job.lengths,
        job.target,
        under_way,
    )
    under_way.replace(written)
    return simulated


def _compare(
    folder: HybridFolder, lengths: Sequence[int], index: int, recorded: Recorded, simulated: Simulated
) -> Built:
    least, where, finite = 1.0, "all", True
    for length in lengths:
        inputs, expected = recorded.pop((index, length))
        found = simulated.run(inputs)
        names = [tensor.name for tensor in folder.meta.segments[index].outputs]
        for name, one, other in zip(names, found, expected, strict=True):
            finite = finite and bool(np.isfinite(one).all())
            cosine = least_cosine(one, other)
            if cosine < least:
                least, where = cosine, f"{name} at length {length}"
    return Built(index, least, where, finite)


def _continue(folder: HybridFolder, job: Job, kept: Sequence[Simulated]) -> Continued:
    simulator = Segments(folder, job.lengths, lambda index, inputs: kept[index].run(inputs), "simulator")
    on_cpu = Segments(folder, job.lengths, OnOnnxruntime(folder, keep=True), "onnxruntime")
    same = 0
    for prompt in job.prompts:
        both = zip(
            _greedy(folder, simulator, prompt, job.steps),
            _greedy(folder, on_cpu, prompt, job.steps),
            strict=True,
        )
        for one, other in both:
            if one != other:
                break
            same += 1
    return Continued(same, job.steps * len(job.prompts))


def _greedy(folder: HybridFolder, executor: Executor, prompt: Sequence[int], steps: int) -> list[int]:
    """Return the most likely continuation of a prompt, whatever ends an answer."""
    forward = Forward(folder, executor)
    cache = forward.new_cache()
    rest = np.array(prompt, np.int32)
    while len(rest) > forward.max_tokens:
        forward.run(rest[: forward.max_tokens], cache, want_logits=False)
        rest = rest[forward.max_tokens :]
    found: list[int] = []
    while len(found) < steps:
        logits = forward.run(rest, cache, want_logits=True)
        assert logits is not None
        found.append(int(logits.argmax()))
        rest = np.array(found[-1:], np.int32)
    return found
