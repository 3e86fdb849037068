"""From a registry entry to what a worker is told."""

from __future__ import annotations

from pathlib import Path

from backends.base import HybridOptions, ModelSpec, RkllmOptions
from server.registry.entry import Entry
from server.settings import Settings

TOKENIZER_FILE = "tokenizer.json"


def model_spec(entry: Entry, settings: Settings, library: Path | None = None) -> ModelSpec:
    """Return what a worker is told of a model, paths absolute. Looks at the disk for a pulled tokenizer.

    library: the vendor's runtime library that was chosen for it, if it needs one.
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
            executor=hybrid.executor,
            core_mask=hybrid.core_mask,
            threads=hybrid.threads,
            kv_dtype=hybrid.kv_dtype,
            cache_mb=hybrid.cache_mb,
            variant=hybrid.variant,
            meta=None if hybrid.meta is None else str(_absolute(directory / hybrid.meta)),
        ),
        rkllm=RkllmOptions() if entry.backend == "hybrid" else _rkllm(entry, library),
    )


def _rkllm(entry: Entry, library: Path | None) -> RkllmOptions:
    options = entry.rkllm
    return RkllmOptions(
        library=None if library is None else str(_absolute(library)),
        runtime=entry.runtime,
        runtime_check=entry.runtime_check,
        base_domain_id=options.base_domain_id,
        cpus=options.cpus,
        embed_flash=options.embed_flash,
        n_keep=options.n_keep,
        skip_special_token=options.skip_special_token,
        input=options.input,
        runtime_bos=options.runtime_bos,
        last_token_cached=options.last_token_cached,
        clear_after_abort=options.clear_after_abort,
        context_reserve=options.context_reserve,
    )


def _tokenizer(entry: Entry, directory: Path) -> str | None:
    if isinstance(entry.tokenizer, str):
        return str(_absolute(directory / entry.tokenizer))
    pulled = directory / TOKENIZER_FILE
    if entry.tokenizer is not None and pulled.is_file():
        return str(_absolute(pulled))
    return None


def _absolute(path: Path) -> Path:
    return path.absolute()
