"""One model of the registry: every key of models.yaml, typed and checked on its own.

What needs other entries (aliases, side models, adapters) is checked by `load`. Looks at the disk only in
`installed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field, model_validator

from backends.discovery import RKLLM_ABI
from backends.spec import META_FILE
from server.registry.blocks import (
    Alias,
    Block,
    Embeddings,
    EosToken,
    FolderPath,
    HybridBlock,
    License,
    Lora,
    Measured,
    ModelId,
    PositiveInt,
    RelPath,
    RkllmBlock,
    SamplingDefaults,
    Sha256,
    Source,
    Specifier,
    Template,
    TemplateOptions,
    Text,
    Thinking,
    Tokenizer,
    Tools,
    Vision,
    shared_with,
)

Capability = Literal["chat", "vision", "embeddings", "tools", "thinking"]

DEFAULT_MAX_TOKENS = 1024


# What an adapter's entry cannot say, since it runs in its base's worker.
_OF_THE_BASE = ("runtime", "runtime_check", "tokenizer", "eos", "vision", "embeddings", "hybrid")


class Contradictions(ValueError):
    """Keys that do not go together. `found` holds pairs of the key to point at, dotted, and what is wrong."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {message}" for key, message in found))
        self.found = tuple(found)


class Entry(Block):
    """A model: where its files come from, how it is run, prompted and sampled, what is known of it."""

    id: ModelId
    aliases: tuple[Alias, ...] = ()
    backend: Literal["rkllm", "hybrid"]
    source: Source | None = None
    file: RelPath | None = None
    folder: FolderPath | None = None
    sha256: Sha256 | None = None
    runtime: Specifier | None = None
    runtime_check: Literal["strict", "warn"] = "strict"
    template: Template
    template_options: TemplateOptions = TemplateOptions()
    tokenizer: Tokenizer | None = None
    eos: tuple[EosToken, ...] = ()
    stop: tuple[Text, ...] = ()
    thinking: Thinking | None = None
    tools: Tools | None = None
    context_length: PositiveInt
    max_tokens: PositiveInt = Field(
        default_factory=lambda data: min(DEFAULT_MAX_TOKENS, data.get("context_length", DEFAULT_MAX_TOKENS))
    )
    memory_mb: PositiveInt
    capabilities: Annotated[tuple[Capability, ...], Field(min_length=1)] = ("chat",)
    sampling: SamplingDefaults = SamplingDefaults()
    overflow: Literal["error", "drop_tools", "truncate_oldest"] = "error"
    side_model: ModelId | None = None
    rkllm: RkllmBlock = RkllmBlock()
    hybrid: HybridBlock = HybridBlock()
    vision: Vision | None = None
    embeddings: Embeddings | None = None
    license: License
    measured: Measured = Measured()

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        if found := self._contradictions():
            raise Contradictions(found)
        return self

    def _contradictions(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        wanted, other = ("folder", "file") if self.backend == "hybrid" else ("file", "folder")
        if self.adapter is not None:
            found += [
                (key, "an adapter has this from its base; remove it")
                for key in _OF_THE_BASE
                if key in self.model_fields_set
            ]
        elif getattr(self, wanted) is None:
            found.append((wanted, f"required with backend: {self.backend}"))
        if getattr(self, other) is not None:
            found.append((other, f"backend: {self.backend} takes {wanted}:, not {other}:"))
        unused = "rkllm" if self.backend == "hybrid" else "hybrid"
        if unused in self.model_fields_set:
            found.append((unused, f"this block has no effect with backend: {self.backend}; remove it"))
        if self.max_tokens > self.context_length:
            found.append(
                ("max_tokens", f"{self.max_tokens} is more than context_length, {self.context_length}")
            )
        if self.backend == "rkllm" and self.runtime is not None and not satisfiable(self.runtime, RKLLM_ABI):
            found.append(
                ("runtime", f'"{self.runtime}" allows no version we can drive, which are {RKLLM_ABI}')
            )
        if self.backend == "rkllm" and self.sampling.min_p:
            found.append(("sampling.min_p", "librkllmrt has no min_p; remove it"))
        if self.backend == "hybrid" and self.embeddings is not None and "embeddings" in self.capabilities:
            found.append(
                ("embeddings", "the hybrid engine makes none: it computes no hidden states apart from logits")
            )
        for capability in ("vision", "embeddings"):
            block = getattr(self, capability)
            if block is not None and capability not in self.capabilities:
                found.append((capability, f"this block needs {capability} in capabilities"))
            if block is None and capability in self.capabilities:
                found.append(("capabilities", f"{capability} needs the block {capability}:"))
        if self.vision is not None:
            if self.backend == "hybrid" and "vision" in self.capabilities:
                found.append(("vision", "only models with backend: rkllm take images; remove it"))
            if self.vision.dtype == "uint8" and (self.vision.mean or self.vision.std):
                found.append(("vision.dtype", "uint8 takes pixels as they are; mean and std need float32"))
            if not self.vision.file.endswith((".rknn", ".onnx")):
                found.append(("vision.file", "must be a .rknn or .onnx file"))
        for capability in ("tools", "thinking"):
            if capability in self.capabilities and getattr(self, capability) is None:
                found.append(("capabilities", f"{capability} needs the key {capability}:"))
        if len(set(self.capabilities)) != len(self.capabilities):
            found.append(("capabilities", "one stands there twice"))
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The id and the aliases."""
        return (self.id, *self.aliases)

    @property
    def adapter(self) -> Lora | None:
        """What makes this an adapter on another entry's model, None where it is a model itself."""
        return self.rkllm.lora if self.backend == "rkllm" else None

    def directory(self, models_dir: Path) -> Path:
        """Return the model's directory: its own, or that of the entry whose folder it shares."""
        return models_dir / (self.shares_with or self.id)

    @property
    def shares_with(self) -> str | None:
        """The id of the entry whose folder this one names: `folder: ../ID`."""
        return shared_with(self.folder or "") if self.adapter is None else None

    def path(self, models_dir: Path) -> Path:
        """Return the model's or adapter's file, or the hybrid engine's folder, absolute if models_dir is."""
        if self.adapter is not None:
            return self.directory(models_dir) / self.adapter.file
        name = self.folder if self.backend == "hybrid" else self.file
        assert name is not None  # _consistent saw to it
        if self.shares_with is not None:
            return self.directory(models_dir)
        return self.directory(models_dir) / name

    def installed(self, models_dir: Path) -> bool:
        """Return whether the entry's own files are there, not whether they are whole. See Registry.host."""
        path = self.path(models_dir)
        if self.backend == "rkllm":
            return path.is_file()
        return (path / META_FILE).is_file() or (self.hybrid.meta is not None and path.is_dir())

    def encoder(self, models_dir: Path) -> Path | None:
        """Return the file of the image encoder, None without one or where it is not there."""
        path = None if self.vision is None else self.directory(models_dir) / self.vision.file
        return path if path is not None and path.is_file() else None

    def available(self, models_dir: Path) -> tuple[Capability, ...]:
        """Return the capabilities whose files are there."""
        sees = self.encoder(models_dir) is not None
        return tuple(capability for capability in self.capabilities if sees or capability != "vision")


def satisfiable(specifier: str, abi: SpecifierSet) -> bool:
    """Return whether some version satisfies a specifier and can be driven.

    Tried on the releases 1.3.0 to 1.3.99, on the versions the specifiers name and on their successors: enough
    for runtimes that count their patches one by one.
    """
    both = SpecifierSet(specifier) & abi
    candidates = {Version(f"1.3.{patch}") for patch in range(100)}
    for part in both:
        named = Version(part.version.removesuffix(".*"))
        candidates |= {named, Version(f"{named.major}.{named.minor}.{named.micro + 1}")}
    return any(both.contains(version, prereleases=True) for version in candidates)
