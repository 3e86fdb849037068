"""Reading a hybrid folder and refusing it with everything that is wrong with it.

Looks at meta2.json, at which files exist, at their sizes and at the hashes of small ones; opens no graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backends.base import BackendError, ErrorCode
from backends.files import sha256_of
from backends.hybrid.layout import contradictions, unsupported
from backends.hybrid.meta import META_FILE, Build, File, Meta
from backends.hybrid.ranges import bad_file_names, is_plain
from backends.hybrid.schema import departures

PREFERRED_VARIANTS = ("int4", "int8", "fp32")
META_BYTES = 16 * 1024 * 1024  # the largest meta2.json that is read; one of 100 layers takes 200 kB
HASHED_AT_LOAD_BYTES = 4 * 1024 * 1024  # larger files are compared by size; `verify_files` hashes them all


@dataclass(frozen=True)
class HybridFolder:
    """A folder that was checked. builds: the file that computes each segment, of one executor and variant.

    programs: what native kernels compute single tokens with beside those; empty unless of every segment.
    """

    path: Path
    meta: Meta
    variant: str
    builds: tuple[Build, ...]
    programs: tuple[Build, ...] = ()

    def file(self, name: str) -> Path:
        """Return the path of a file meta2.json names."""
        return self.path / name


def read_folder(
    path: Path, *, executor: str = "onnx", variant: str | None = None, overlay: Path | None = None
) -> HybridFolder:
    """Read and check a folder.

    variant None: the one of fewest bits, else the first one. overlay: a JSON file whose fields are put over
    those of meta2.json, for folders that lack some.

    Raises BackendError: model_corrupt with the whole list of what is missing or wrong, load_failed for what
    cannot be read or this engine cannot run.
    """
    meta = _read_meta(path, overlay)
    problems = contradictions(meta)
    variant, builds, lacking = _choose_builds(meta, executor, variant)
    programs = _programs(meta, variant) if executor == "onnx" else []
    problems += file_problems(path, files_of(meta, [*builds, *programs]), HASHED_AT_LOAD_BYTES)
    if problems:
        raise _refusal("model_corrupt", path, "is damaged or incomplete", problems)
    if missing := unsupported(meta):
        raise _refusal("load_failed", path, "needs what this engine cannot do yet", [*lacking, *missing])
    if lacking:
        raise _refusal("load_failed", path, "does not have what is asked for", lacking)
    return HybridFolder(path, meta, variant, tuple(builds), tuple(programs))


def verify_files(path: Path, overlay: Path | None = None) -> list[str]:
    """Hash every file of every build against meta2.json; return what is missing or wrong.

    Reads the whole folder, gigabytes. Raises BackendError if meta2.json cannot be read.
    """
    meta = _read_meta(path, overlay)
    builds = [build for segment in meta.segments for build in segment.builds]
    return [*contradictions(meta), *file_problems(path, files_of(meta, builds), None)]


def file_problems(path: Path, files: Iterable[File], hash_up_to_bytes: int | None) -> list[str]:
    """Return a line for each file that is missing, of another size or, up to a size, of another hash."""
    files = list(files)
    plain = {file.file: file for file in files if is_plain(file.file)}
    found = list(bad_file_names(files))
    return found + [line for file in plain.values() for line in _file(path, file, hash_up_to_bytes)]


def _file(folder: Path, file: File, hash_up_to_bytes: int | None) -> Iterator[str]:
    path = folder / file.file
    try:
        if not path.is_file():
            yield f"{file.file} is missing"
            return
        size = path.stat().st_size
        if size != file.size_bytes:
            how = "cut off" if size < file.size_bytes else "too long"
            yield f"{file.file} is {how}: {size} bytes where {file.size_bytes} are right"
        elif (hash_up_to_bytes is None or size <= hash_up_to_bytes) and sha256_of(path) != file.sha256:
            yield f"{file.file} has the right size and wrong bytes: its sha256 is not {file.sha256}"
    except OSError as error:
        yield f"{file.file} cannot be read: {error.strerror}"


def files_of(meta: Meta, builds: Iterable[Build]) -> list[File]:
    """Return every file the folder must hold to run these builds, as often as it is named."""
    files = [meta.embedding.file, meta.tokenizer]
    files += [file for file in (meta.chat_template, meta.license.text, meta.license.notice_file) if file]
    files += [file for layer in meta.layers for file in (layer.q_norm, layer.k_norm) if file]
    for build in builds:
        files.append(File(file=build.file, sha256=build.sha256, size_bytes=build.size_bytes))
        if build.data_file and build.data_sha256 and build.data_size_bytes is not None:
            data = File(file=build.data_file, sha256=build.data_sha256, size_bytes=build.data_size_bytes)
            files.append(data)
    return files


def _choose_builds(meta: Meta, executor: str, variant: str | None) -> tuple[str, list[Build], list[str]]:
    """Return the variant to run, its build of each segment, and what is lacking for that."""
    offered = [
        {build.variant: build for build in segment.builds if build.executor == executor}
        for segment in meta.segments
    ]
    everywhere = [
        name for name in (offered[0] if offered else {}) if all(name in builds for builds in offered)
    ]
    if variant is None:
        preferred = [name for name in PREFERRED_VARIANTS if name in everywhere]
        variant = (preferred or everywhere or ["fp32"])[0]
    if variant not in everywhere:
        without = [str(index) for index, builds in enumerate(offered) if variant not in builds]
        where = "any segment" if len(without) == len(offered) else f"segments {', '.join(without)}"
        have = ", ".join(everywhere) or "none"
        lacking = f"{executor} files of variant {variant} for {where} (whole ones: {have})"
        return variant, [builds[variant] for builds in offered if variant in builds], [lacking]
    return variant, [builds[variant] for builds in offered], []


def _programs(meta: Meta, variant: str) -> list[Build]:
    """Return the native build of each segment in this variant; none unless every segment has one."""
    found = [
        build
        for segment in meta.segments
        for build in segment.builds
        if (build.executor, build.variant) == ("native", variant)
    ]
    return found if len(found) == len(meta.segments) else []


def _read_meta(path: Path, overlay: Path | None) -> Meta:
    data = _read_json(path / META_FILE)
    if overlay is not None:
        data = _laid_over(data, _read_json(overlay))
    if problems := departures(data, Meta):
        raise _refusal("model_corrupt", path, f"has a {META_FILE} that is not of this schema", problems)
    return msgspec.convert(data, Meta)


def _read_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(META_BYTES + 1)
        if len(data) > META_BYTES:
            raise BackendError(
                "model_corrupt", f"{path} is over {META_BYTES} bytes long. Pull or convert the model again."
            )
        return msgspec.json.decode(data)
    except OSError as error:
        raise BackendError(
            "load_failed",
            f"{path} cannot be read ({error.strerror}): this is no hybrid folder. Pull or convert the model.",
        ) from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BackendError(
            "model_corrupt", f"{path} is no JSON ({error}). Pull or convert the model again."
        ) from error


def _laid_over(data: Any, overlay: Any) -> Any:
    """Return `data` with the overlay's fields put over it, object by object; lists are replaced whole."""
    if not (isinstance(data, dict) and isinstance(overlay, dict)):
        return overlay
    merged = {key: _laid_over(data[key], value) for key, value in overlay.items() if key in data}
    return data | overlay | merged


def _refusal(code: ErrorCode, path: Path, what: str, problems: list[str]) -> BackendError:
    lines = "".join(f"\n- {problem}" for problem in problems)
    remedy = (
        "Remove the folder, then pull or convert the model again."
        if code == "model_corrupt"
        else "Use another model or variant."
    )
    return BackendError(code, f"The hybrid folder {path} {what}:{lines}\n{remedy}")
