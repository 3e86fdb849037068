"""Hybrid folder -> the same folder with a .rknn of each segment, or a folder for the board with these only.

The folder changes in one step at the end: files of new names are put there first, then meta2.json is
replaced. What a build that stopped has finished stays beside the folder, in .NAME.rknn, and the next one goes
on with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends.base import BackendError
from backends.hybrid.folder import HybridFolder, file_problems, files_of, read_folder
from backends.hybrid.meta import META_FILE, Build, Meta
from convert.errors import ConvertError
from convert.folder import check_free_space, check_target, kept_folder, new_folder
from convert.rknn.environment import TOOLKIT
from convert.rknn.finished import Finished, Origin, find, keep
from convert.rknn.messages import Built, Continued, Job, Step, built_name
from convert.rknn.process import messages
from convert.rknn.text import prompt_ids, text_ids
from convert.writer import Progress, write_meta

VARIANT = "fp16"
TARGETS = ("rk3588",)
LEAST_COSINE = 0.9999
_SHARE_PER_WEIGHT_BYTE = 0.75  # a .rknn holds its weights in half the bytes, and commands for each length


@dataclass(frozen=True)
class Row:
    """What is told of a segment. was_kept: finished by an earlier run."""

    segment: int
    size_bytes: int
    cosine: float
    max_hidden: float | None
    was_kept: bool


@dataclass(frozen=True)
class Report:
    """What was built. continued: greedy tokens of simulator and onnxruntime, where they were compared."""

    folder: Path
    rows: Sequence[Row]
    continued: Continued | None


def build_rknn(
    source: Path,
    python: Callable[[Progress], Path],
    *,
    target: str = "rk3588",
    out: Path | None = None,
    overwrite: bool = False,
    steps: int = 0,
    progress: Progress = lambda done, what: None,
) -> Report:
    """Build all segments of the folder `source` and add them to it.

    python: gives the interpreter of the toolkit's environment, called when it is needed. out: write a folder
    for the board there instead, without the graphs of onnxruntime; overwrite: replace one of that name.
    steps: also compare so many greedy tokens of three prompts; all segments are then built anew and stay in
    memory.

    Raises ConvertError; the folder is then as it was.
    """
    if out is not None:
        check_target(out, overwrite=overwrite)
    folder = _read(source)
    meta, place = folder.meta, (out or source).resolve()
    origins = _origins(folder, target)
    work = place.with_name(f".{place.name}.rknn")
    with kept_folder(work):
        found = {index: None if steps else find(work, index, origin) for index, origin in enumerate(origins)}
        finished = {index: one for index, one in found.items() if one is not None}
        kept = frozenset(finished)
        missing = [index for index in range(len(origins)) if index not in finished]
        continued = None
        if missing:
            check_free_space(place, round(_SHARE_PER_WEIGHT_BYTE * _weight_bytes(folder, missing)))
            tokenizer = folder.file(meta.tokenizer.file)
            job = Job(
                folder=str(folder.path),
                work=str(work),
                target=target,
                lengths=meta.lengths,
                segments=missing,
                token_ids=text_ids(tokenizer, meta.vocab_size, sum(meta.lengths)),
                prompts=prompt_ids(tokenizer, meta.vocab_size) if steps else [],
                steps=steps,
            )
            built, continued = _run(python(progress), job, work, origins, progress)
            finished |= built
        new = _with_builds(meta, finished, target, continued, keep_onnx=out is None)
        if out is None:
            _add(folder.path, meta, new, work, progress)
        else:
            _write(out, folder, new, work, overwrite, progress)
        shutil.rmtree(work, ignore_errors=True)
    rows = [
        Row(index, one.size_bytes, one.cosine, meta.segments[index].max_hidden, index in kept)
        for index, one in sorted(finished.items())
    ]
    return Report(place, rows, continued)


def _read(source: Path) -> HybridFolder:
    """Read the folder and hash what is built from. Raises ConvertError."""
    try:
        folder = read_folder(source.resolve(), variant="fp32")
    except BackendError as error:
        raise ConvertError(error.message) from error
    if problems := file_problems(folder.path, files_of(folder.meta, folder.builds), None):
        raise ConvertError(
            f"{source} is damaged, so nothing is built from it: {'; '.join(problems)}. Convert the "
            "model again."
        )
    return folder


def _origins(folder: HybridFolder, target: str) -> list[Origin]:
    return [
        Origin(
            sources=[build.sha256, build.data_sha256],
            toolkit=TOOLKIT,
            target=target,
            lengths=folder.meta.lengths,
        )
        for build in folder.builds
    ]


def _weight_bytes(folder: HybridFolder, segments: Iterable[int]) -> int:
    return sum(folder.builds[index].data_size_bytes or folder.builds[index].size_bytes for index in segments)


def _run(
    python: Path, job: Job, work: Path, origins: Sequence[Origin], progress: Progress
) -> tuple[dict[int, Finished], Continued | None]:
    """Have segments built; return them. Raises ConvertError, also for one that computes something else."""
    built: dict[int, Finished] = {}
    continued = None
    with contextlib.closing(messages(python, job)) as reports:
        for message in reports:
            match message:
                case Step(done=done, what=what):
                    progress(done / len(job.segments), what)
                case Built(segment=segment, cosine=cosine):
                    _check(message)
                    built[segment] = keep(work, segment, origins[segment], cosine)
                case Continued():
                    continued = message
    return built, continued


def _check(built: Built) -> None:
    if built.finite and built.cosine > LEAST_COSINE:
        return
    what = (
        f"a cosine of {built.cosine:.6f} ({built.where}), and more than {LEAST_COSINE} is needed"
        if built.finite
        else "values that are no numbers: something in it is beyond float16's 65,504"
    )
    raise ConvertError(
        f"Segment {built.segment} of the build computes something else than onnxruntime: {what}. Convert the "
        "model again with rkserve convert hf, which keeps its values within float16; if that changes "
        "nothing, run the model on the CPU (hybrid.executor: onnxruntime)."
    )


def _with_builds(
    meta: Meta, finished: dict[int, Finished], target: str, continued: Continued | None, *, keep_onnx: bool
) -> Meta:
    segments = []
    for index, segment in enumerate(meta.segments):
        one = finished[index]
        others = [build for build in segment.builds if keep_onnx and build.executor != "rknn"]
        build = Build(
            executor="rknn",
            variant=VARIANT,
            # Named by its content: a folder in use never has one file's name and another one's bytes.
            file=f"segment_{index:03d}.{target}.{one.sha256[:12]}.rknn",
            sha256=one.sha256,
            size_bytes=one.size_bytes,
            toolkit=TOOLKIT,
            cosine=round(one.cosine, 9),
        )
        segments.append(msgspec.structs.replace(segment, builds=[*others, build]))
    figures = f"rknn-toolkit2 {TOOLKIT} for {target}, {VARIANT}; simulator against onnxruntime: cosine "
    figures += f"{min(one.cosine for one in finished.values()):.7f} at least"
    if continued is not None:
        figures += f", {continued.same} of {continued.of} greedy tokens the same"
    return msgspec.structs.replace(meta, segments=segments, source={**meta.source, "rknn": figures})


def _add(folder: Path, old: Meta, new: Meta, work: Path, progress: Progress) -> None:
    """Put the builds into a folder that may be in use, and remove those they replace."""
    progress(1.0, f"writing {META_FILE}")
    before, after = _rknn_files(old), _rknn_files(new)
    try:
        _put(work, folder, new)
        partial = folder / f".{META_FILE}.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(new), indent=1))
        _sync(partial)
        os.replace(partial, folder / META_FILE)
    except BaseException:
        for name in after - before:
            (folder / name).unlink(missing_ok=True)
        for name in (*after, META_FILE):
            (folder / f".{name}.partial").unlink(missing_ok=True)
        raise
    _sync(folder)
    for name in before - after:
        (folder / name).unlink(missing_ok=True)


def _write(
    out: Path, folder: HybridFolder, new: Meta, work: Path, overwrite: bool, progress: Progress
) -> None:
    """Write a folder with the builds and what belongs to the model beside its segments."""
    progress(1.0, f"writing {out}")
    beside = {file.file for file in files_of(new, [])}
    check_free_space(out, sum(folder.file(name).stat().st_size for name in beside))
    with new_folder(out, overwrite=overwrite) as partial:
        for name in beside:
            shutil.copyfile(folder.file(name), partial / name)
        _put(work, partial, new)
        write_meta(partial, new)


def _put(work: Path, folder: Path, meta: Meta) -> None:
    """Give finished files their names in a folder; they stay in the work directory until all is done."""
    for index, segment in enumerate(meta.segments):
        source, target = work / built_name(index), folder / segment.builds[-1].file
        partial = target.with_name(f".{target.name}.partial")
        partial.unlink(missing_ok=True)
        try:
            os.link(source, partial)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(source, partial)
        _sync(partial)
        partial.replace(target)


def _rknn_files(meta: Meta) -> set[str]:
    return {build.file for segment in meta.segments for build in segment.builds if build.executor == "rknn"}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
