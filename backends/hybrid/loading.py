"""The parts of a model that an entry and a folder name together: tokenizer, end tokens, executor.

Each is loaded, or refused in words for the person who wrote the entry.
"""

from __future__ import annotations

from pathlib import Path

from backends.base import BackendError
from backends.engine import Progress
from backends.hybrid.executor import Executor
from backends.hybrid.folder import HybridFolder, read_folder
from backends.hybrid.kernels import Kernels
from backends.hybrid.native_segments import with_native_segments
from backends.hybrid.rknn import RknnExecutor
from backends.hybrid.rknnlite import RknnLiteExecutor
from backends.prompts import read_tokenizer
from backends.rknn.library import SymbolsMissing
from backends.shared_library import LibraryError
from backends.spec import ModelSpec
from backends.tokenizer import PromptTokenizer
from backends.vocabulary import Vocabulary


def load_folder(spec: ModelSpec) -> HybridFolder:
    """Read the folder with the builds for the executor that will run them. Raises BackendError.

    auto: .rknn files where the server has chosen a library for the NPU, which it does where there are some.
    """
    options = spec.hybrid
    on_npu = options.executor in ("rknn", "rknnlite") or (options.executor == "auto" and options.library)
    overlay = None if options.meta is None else Path(options.meta)
    return read_folder(
        Path(spec.path), executor="rknn" if on_npu else "onnx", variant=options.variant, overlay=overlay
    )


def load_tokenizer(spec: ModelSpec, folder: HybridFolder) -> PromptTokenizer:
    """Read the entry's tokenizer, or else the folder's. Raises BackendError(load_failed)."""
    path = folder.file(folder.meta.tokenizer.file) if spec.tokenizer is None else Path(spec.tokenizer)
    return read_tokenizer(path)


def load_executor(spec: ModelSpec, folder: HybridFolder, kernels: Kernels, progress: Progress) -> Executor:
    """Load the segments `load_folder` has chosen; `progress` goes from 0 to 1. Raises BackendError.

    kernels: convert numbers for the NPU; compute single tokens where the folder has programs for that.
    """
    if spec.hybrid.executor == "rknnlite":
        return _on_rknnlite(spec, folder, progress)
    if spec.hybrid.executor == "rknn" or folder.builds[0].executor == "rknn":
        return _on_rknn(spec, folder, kernels, progress)
    from backends.hybrid.ort import OrtExecutor  # 40 MB and half a second, for this executor only

    executor = OrtExecutor(folder, spec.hybrid.threads, progress)
    try:
        return with_native_segments(folder, executor, kernels)
    except BaseException:
        executor.close()
        raise


def _on_rknn(spec: ModelSpec, folder: HybridFolder, kernels: Kernels, progress: Progress) -> Executor:
    options = spec.hybrid
    if options.library is None:
        raise BackendError(
            "load_failed",
            f"No runtime library was chosen for {spec.model_id}. rkserve runtime install FILE|URL puts "
            "librknnrt.so where it is looked for.",
        )
    try:
        return RknnExecutor(
            folder,
            Path(options.library),
            progress,
            core_mask=options.core_mask,
            wanted=options.runtime,
            kernels=kernels,
        )
    except SymbolsMissing as error:
        if options.executor == "auto":
            return _on_rknnlite(spec, folder, progress)
        raise BackendError("load_failed", error.message) from error
    except LibraryError as error:
        raise BackendError("load_failed", error.message) from error


def _on_rknnlite(spec: ModelSpec, folder: HybridFolder, progress: Progress) -> Executor:
    options = spec.hybrid
    return RknnLiteExecutor(folder, progress, core_mask=options.core_mask, wanted=options.runtime)


def end_tokens(spec: ModelSpec, folder: HybridFolder, vocabulary: Vocabulary) -> frozenset[int]:
    """Return the ids that end an answer: the folder's and the entry's. Raises BackendError(load_failed)."""
    ids = set(folder.meta.eos_token_ids)
    unknown = []
    for eos in spec.eos:
        token_id = vocabulary.id_of(eos) if isinstance(eos, str) else eos
        if token_id is None or not 0 <= token_id < folder.meta.vocab_size:
            unknown.append(repr(eos))
        else:
            ids.add(token_id)
    if unknown:
        raise BackendError(
            "load_failed",
            f"The entry {spec.model_id} names under eos what is no token of the model: {', '.join(unknown)}. "
            "Correct eos in models.yaml, or fetch the tokenizer that belongs to the model.",
        )
    return frozenset(ids)
