"""The parts of a model that an entry and a folder name together: tokenizer, end tokens, executor.

Each is loaded, or refused in words for the person who wrote the entry.
"""

from __future__ import annotations

from pathlib import Path

from backends.base import BackendError
from backends.engine import Progress
from backends.hybrid.executor import Executor
from backends.hybrid.folder import HybridFolder
from backends.prompts import read_tokenizer
from backends.spec import ModelSpec
from backends.tokenizer import PromptTokenizer
from backends.vocabulary import Vocabulary


def refuse_unsupported_options(spec: ModelSpec) -> None:
    """Raise BackendError(load_failed) with all options of the entry that this engine cannot honour yet."""
    options = spec.hybrid
    missing = []
    if options.executor not in ("auto", "onnxruntime"):
        missing.append(f"executor: {options.executor} (there is onnxruntime)")
    if missing:
        raise BackendError(
            "load_failed",
            f"The entry {spec.model_id} asks for what the hybrid engine cannot do yet: {', '.join(missing)}. "
            "Change these keys under hybrid in models.yaml.",
        )


def load_tokenizer(spec: ModelSpec, folder: HybridFolder) -> PromptTokenizer:
    """Read the entry's tokenizer, or else the folder's. Raises BackendError(load_failed)."""
    path = folder.file(folder.meta.tokenizer.file) if spec.tokenizer is None else Path(spec.tokenizer)
    return read_tokenizer(path)


def load_executor(spec: ModelSpec, folder: HybridFolder, progress: Progress) -> Executor:
    """Load the segments; `progress` goes from 0 to 1. Raises BackendError."""
    from backends.hybrid.ort import OrtExecutor  # 40 MB and half a second, for this executor only

    return OrtExecutor(folder, spec.hybrid.threads, progress)


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
