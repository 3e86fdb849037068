"""From a registry entry to what a worker is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backends.base import Adapter, Span
from backends.spec import (
    EmbeddingOptions,
    HybridOptions,
    ImageMarks,
    ModelSpec,
    PromptCacheOptions,
    RkllmOptions,
    VisionOptions,
)
from server.registry.entry import Entry
from server.settings import Settings

TOKENIZER_FILE = "tokenizer.json"
PROMPT_CACHE_DIRECTORY = "prompt-cache"


def model_spec(
    entry: Entry, settings: Settings, library: Path | None = None, fixed_prompt: Sequence[Span] = ()
) -> ModelSpec:
    """Return what a worker is told of a model, paths absolute. Looks at the disk for a pulled tokenizer.

    library: the vendor's runtime library that was chosen for it, if it needs one. fixed_prompt: with what its
    chats begin, for an entry with a prompt cache.
    """
    directory = entry.directory(settings.models_dir)
    hybrid = entry.hybrid
    return ModelSpec(
        model_id=entry.id,
        backend=entry.backend,
        path=str(_absolute(entry.path(settings.models_dir))),
        context_length=entry.context_length,
        max_tokens=entry.max_tokens,
        eos=list(entry.eos),
        stop=list(entry.stop),
        repeat_guard=settings.repeat_guard,
        tokenizer=_tokenizer(entry, directory),
        hybrid=HybridOptions(
            **hybrid.model_dump(exclude={"meta"}),
            meta=None if hybrid.meta is None else str(_absolute(directory / hybrid.meta)),
            library=_library(library) if entry.backend == "hybrid" else None,
            runtime=entry.runtime if entry.backend == "hybrid" else None,
        ),
        rkllm=RkllmOptions()
        if entry.backend == "hybrid"
        else _rkllm(entry, library, _prompt_cache(entry, directory, fixed_prompt)),
        vision=_vision(entry, settings),
        embeddings=_embeddings(entry),
    )


def _vision(entry: Entry, settings: Settings) -> VisionOptions | None:
    vision, encoder = entry.vision, entry.encoder(settings.models_dir)
    if vision is None or encoder is None:
        return None
    return VisionOptions(
        **vision.model_dump(exclude={"file", "marks"}),
        encoder=str(_absolute(encoder)),
        marks=ImageMarks(**vision.marks.model_dump()),
        max_pixels=int(settings.max_image_mp * 1e6),
    )


def adapter_of(entry: Entry, models_dir: Path) -> Adapter | None:
    """Return the adapter that an entry's answers are made with, if it is one."""
    if entry.adapter is None:
        return None
    path = _absolute(entry.path(models_dir))
    return Adapter(name=entry.id, path=str(path), scale=entry.adapter.scale)


def _embeddings(entry: Entry) -> EmbeddingOptions | None:
    block = entry.embeddings
    if block is None:
        return None
    return EmbeddingOptions(**block.model_dump(exclude={"append", "instruction"}), append=block.append or "")


def _prompt_cache(entry: Entry, directory: Path, fixed_prompt: Sequence[Span]) -> PromptCacheOptions | None:
    if not entry.rkllm.prompt_cache:
        return None
    return PromptCacheOptions(
        directory=str(_absolute(directory / PROMPT_CACHE_DIRECTORY)), prefix=list(fixed_prompt)
    )


def _rkllm(entry: Entry, library: Path | None, prompt_cache: PromptCacheOptions | None) -> RkllmOptions:
    return RkllmOptions(
        **entry.rkllm.model_dump(exclude={"lora", "prompt_cache", "structured"}),
        library=_library(library),
        runtime=entry.runtime,
        runtime_check=entry.runtime_check,
        prompt_cache=prompt_cache,
    )


def _library(path: Path | None) -> str | None:
    return None if path is None else str(_absolute(path))


def _tokenizer(entry: Entry, directory: Path) -> str | None:
    if isinstance(entry.tokenizer, str):
        return str(_absolute(directory / entry.tokenizer))
    pulled = directory / TOKENIZER_FILE
    if entry.tokenizer is not None and pulled.is_file():
        return str(_absolute(pulled))
    return None


def _absolute(path: Path) -> Path:
    return path.absolute()
