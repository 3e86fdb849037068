"""Writes the hybrid folder of a model: embedding, segments, norms, tokenizer, template, licence, meta2.json.

Takes a model's parts and a way to get weights by name; knows no file format they may come from. Weights are
asked for one at a time and not kept: a model larger than the memory can be converted.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from backends.hybrid.meta import META_FILE, SCHEMA_VERSION, Embedding, File, Layer, License, Meta, Segment
from backends.hybrid.ranges import out_of_range
from convert.errors import ConvertError
from convert.graphs import ALIGNMENT, Array, StoredMatrix
from convert.matrices import Blocks, Matrices, Weights
from convert.model import CONV, AttentionParts, Model, Shape, cuts
from convert.segments import SegmentWriter

EMBEDDING_FILE = "embedding.npy"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
LICENSE_FILE = "LICENSE"
NOTICE_FILE = "NOTICE"
LENGTHS = (1, 32, 128)
_CHECKED_ROWS = 1024  # of a weight, at a time

Progress = Callable[[float | None, str], None]  # share done, None: not known; what is being done


@dataclass(frozen=True)
class Papers:
    """What goes into a folder beside the weights. tokenizer: the text of a tokenizer.json.

    license: its files are written here, from license_text and notice_text.
    """

    name: str
    tokenizer: str
    chat_template: str | None
    eos_token_ids: Sequence[int]
    license: License
    source: Mapping[str, str]
    lengths: Sequence[int] = LENGTHS
    license_text: str | None = None
    notice_text: str | None = None
    progress: Progress = field(default=lambda done, what: None)


@dataclass(frozen=True)
class QuantizedVariant:
    """A variant that keeps the blocks a file quantized its matrices to. blocks: None for those it did not."""

    name: str
    blocks: Blocks


def write_folder(
    directory: Path,
    model: Model,
    weights: Weights,
    papers: Papers,
    *,
    residual_scale: float = 1.0,
    quantized: QuantizedVariant | None = None,
) -> Meta:
    """Write a complete folder into `directory`, which exists and is empty, and return its description.

    weights: gives a weight by its name. residual_scale: what the stream in the graphs is divided by, a power
    of two. quantized: a second variant to write. Raises ConvertError for weights of a wrong shape or that are
    not finite, OSError.
    """
    described = _described(model, papers, residual_scale)
    shapes = model.shapes()

    def load(name: str) -> Array:
        weight = weights(name)
        _check(name, weight, shapes[name])
        return weight

    papers.progress(0.0, "embedding")
    embedding, stored = _write_embedding(directory, load(model.embedding))
    matrices = Matrices(load, None if quantized is None else quantized.blocks)
    writer = SegmentWriter(
        directory, model, matrices, stored, residual_scale, None if quantized is None else quantized.name
    )
    segments: list[Segment] = []
    planned = cuts(model.layers)
    for index, cut in enumerate(planned):
        papers.progress((index + 1) / (len(planned) + 1), f"segment {index + 1} of {len(planned)}")
        segments.append(writer.write(f"segment_{index:03d}", cut))
    meta = msgspec.structs.replace(
        described,
        layers=[_layer(directory, model, index, load) for index in range(len(model.layers))],
        embedding=msgspec.structs.replace(described.embedding, file=embedding),
        tokenizer=write_text(directory, TOKENIZER_FILE, papers.tokenizer),
        chat_template=_write_optional(directory, TEMPLATE_FILE, papers.chat_template),
        license=msgspec.structs.replace(
            papers.license,
            text=_write_optional(directory, LICENSE_FILE, papers.license_text),
            notice_file=_write_optional(directory, NOTICE_FILE, papers.notice_text),
        ),
        segments=segments,
    )
    write_meta(directory, meta)
    papers.progress(1.0, "written")
    return meta


def _described(model: Model, papers: Papers, residual_scale: float) -> Meta:
    """Return the description as far as it names no files. Raises ConvertError for what no engine takes."""
    unwritten = File(file="", sha256="", size_bytes=0)
    meta = Meta(
        version=SCHEMA_VERSION,
        architecture=model.architecture,
        name=papers.name,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        norm_eps=model.norm_eps,
        residual_scale=residual_scale,
        logits_scale=model.logits_scale,
        logits_softcap=model.logits_softcap,
        eos_token_ids=list(papers.eos_token_ids),
        lengths=list(papers.lengths),
        attention=dict(model.attention),
        layers=[],
        embedding=Embedding(file=unwritten, dtype="float32", scale=model.embedding_scale / residual_scale),
        tokenizer=unwritten,
        chat_template=None,
        license=papers.license,
        source=dict(papers.source),
        segments=[],
    )
    if wrong := list(out_of_range(meta)):
        raise ConvertError(
            f"The model has what this engine cannot take: {'; '.join(wrong)}. If its makers do not say so "
            "themselves, it is damaged: fetch it again."
        )
    return meta


def write_meta(directory: Path, meta: Meta) -> None:
    """Write a folder's description. Raises OSError."""
    (directory / META_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1))


def write_text(directory: Path, name: str, text: str) -> File:
    """Write a text into the folder and return how meta2.json names it. Raises OSError."""
    return _write(directory, name, text.encode())


def _write_optional(directory: Path, name: str, text: str | None) -> File | None:
    return None if text is None else write_text(directory, name, text)


def _write(directory: Path, name: str, data: bytes) -> File:
    (directory / name).write_bytes(data)
    return File(file=name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def _layer(directory: Path, model: Model, index: int, load: Weights) -> Layer:
    """Return a layer's description, its norms of q and k written as files."""
    part = model.layers[index].operator
    if not isinstance(part, AttentionParts):
        return Layer(type=CONV)
    files: dict[str, File] = {}
    for role, name in (("q_norm", part.q_norm), ("k_norm", part.k_norm)):
        if name is not None:
            data = io.BytesIO()
            np.save(data, (load(name) + np.float32(model.norm_offset)).astype("<f4"))
            files[role] = _write(directory, f"layer_{index:03d}_{role}.npy", data.getvalue())
    return Layer(type=part.type, **files)


def _check(name: str, weight: Array, expected: Shape) -> None:
    if weight.shape != expected:
        raise ConvertError(
            f"The weight {name} has shape {weight.shape}, but the model's dimensions need {expected}: "
            "the file is damaged or not the architecture it names. Fetch it again from its publisher."
        )
    for start in range(0, len(weight), _CHECKED_ROWS):
        if not np.isfinite(weight[start : start + _CHECKED_ROWS]).all():
            raise ConvertError(
                f"The weight {name} holds NaN or infinite values, so every answer would be garbage: "
                "the file is damaged. Compare its sha256 with the publisher's and fetch it again."
            )


def _write_embedding(directory: Path, table: Array) -> tuple[File, StoredMatrix]:
    """Write the table as a .npy whose data begins at a page border, so that a graph can map it too.

    The header of the .npy format 1.0 may be padded with spaces: magic, version, length, dictionary, newline.
    """
    fields = {"descr": "<f4", "fortran_order": False, "shape": table.shape}
    header = repr(fields).encode().ljust(ALIGNMENT - 11) + b"\n"
    start = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header
    data = np.ascontiguousarray(table, dtype="<f4").reshape(-1).view(np.uint8).data
    with (directory / EMBEDDING_FILE).open("wb") as file:
        file.write(start)
        file.write(data)
    digest = hashlib.sha256(start)
    digest.update(data)
    file_meta = File(file=EMBEDDING_FILE, sha256=digest.hexdigest(), size_bytes=len(start) + data.nbytes)
    return file_meta, StoredMatrix(EMBEDDING_FILE, len(start), (table.shape[0], table.shape[1]))
