"""GGUF -> hybrid folder: reads the file tensor by tensor, dequantizes to float32, writes ONNX segments.

Memory: one segment's weights, and while the result is measured one segment.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from backends.files import sha256_of
from backends.hybrid.meta import License
from convert.architectures import ARCHITECTURES
from convert.errors import ConvertError
from convert.files import check_no_stream
from convert.folder import check_free_space, check_target, new_folder
from convert.gguf_config import hf_config
from convert.gguf_file import GgufFile
from convert.gguf_metadata import ARCHITECTURE, Metadata, eos_token_ids, license_of
from convert.gguf_rope_factors import TENSOR as ROPE_FACTORS
from convert.gguf_tokenizer import build_tokenizer, check_tokenizer
from convert.gguf_weights import GgufWeights
from convert.hf_config import Config
from convert.measured import write_measured
from convert.model import Model
from convert.quantized import TYPES as QUANTIZED_TYPES
from convert.writer import LENGTHS, Papers, Progress, QuantizedVariant

_OUTPUT = "output.weight"  # missing where the embedding is the output table too
_SCALED_BY_FACTORS = frozenset({"llama", "granite"})  # in which llama.cpp reads ROPE_FACTORS
_BESIDE_WEIGHTS = 64 * 1024 * 1024  # bytes: tokenizer, graphs, page borders


def convert_gguf(
    path: Path,
    out: Path,
    *,
    tokenizer: Path | None = None,
    license: License | None = None,
    overwrite: bool = False,
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda done, what: None,
) -> Path:
    """Convert a GGUF file to the hybrid folder `out`, which appears only when it is whole, and return `out`.

    tokenizer: a tokenizer.json to take instead of one made of the file's vocabulary. license: used instead of
    what the file says. overwrite: replace a hybrid folder of that name. lengths: tokens a call the folder is
    made for, 1 first. progress: called with the share done (0 to 1) and what is being done. Holds one
    segment's weights in memory at a time. Raises ConvertError.
    """
    check_target(out, overwrite=overwrite)
    try:
        opened = GgufFile(path)
    except OSError as error:
        raise ConvertError(
            f"{path} cannot be read: {error.strerror}. Check the path and its rights."
        ) from error
    with opened as file:
        metadata = Metadata(file.metadata)
        model = _model(file, metadata)
        weights = GgufWeights(metadata.get(ARCHITECTURE, str), model)
        _check_tensors(file, model, weights)
        eos = eos_token_ids(metadata)
        name = metadata.find("general.name", str) or path.stem
        template = metadata.find("tokenizer.chat_template", str)
        bos = metadata.find("tokenizer.ggml.bos_token_id", int)
        progress(0.0, f"reading {path.name}")  # not before it is known that there is something to do
        text = build_tokenizer(metadata) if tokenizer is None else _given_tokenizer(tokenizer, metadata)
        metadata.finish()
        quantized = _quantized_variant(file, model, weights)
        check_free_space(out, _folder_bytes(file, model, weights, quantized) + _BESIDE_WEIGHTS)
        papers = Papers(
            name=name,
            tokenizer=text,
            chat_template=template,
            eos_token_ids=eos,
            license=license or license_of(metadata, path.name),
            source={"format": "gguf", "file": path.name, "sha256": sha256_of(path)},
            lengths=lengths,
            progress=progress,
        )
        with new_folder(out, overwrite=overwrite) as folder:
            write_measured(
                folder,
                model,
                lambda name: weights.read(file, name),
                papers,
                tokenizer=Tokenizer.from_str(text),
                bos=bos,
                quantized=quantized,
            )
    return out


def _given_tokenizer(path: Path, metadata: Metadata) -> str:
    check_no_stream(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConvertError(f"{path} cannot be read ({error}). Give the model's tokenizer.json.") from error
    check_tokenizer(text, metadata, path)
    metadata.ignore("tokenizer.ggml.model", "tokenizer.ggml.add_space_prefix")
    return text


def _model(file: GgufFile, metadata: Metadata) -> Model:
    """Return what the metadata say of the model; a tensor adds to it in two cases."""
    scaled = ROPE_FACTORS in file.tensors and metadata.get(ARCHITECTURE, str) in _SCALED_BY_FACTORS
    values = hf_config(
        metadata,
        tied=_OUTPUT not in file.tensors,
        rope_factors=file.read(ROPE_FACTORS) if scaled else None,
    )
    config = Config(values, f"the metadata of {file.path.name}")
    model = ARCHITECTURES[values["model_type"]](config)
    config.finish()
    # Norms are stored as they are applied: the converter adds what a checkpoint's are stored less
    # (Gemma3Model.norm_shift in conversion/gemma.py).
    return dataclasses.replace(model, norm_offset=0.0)


def _quantized_variant(file: GgufFile, model: Model, weights: GgufWeights) -> QuantizedVariant | None:
    """Return the variant in the file's own few bits, if most of its weights are in such matrices.

    For a few of them it would not be worth rounding the activations of those.
    """
    sizes: dict[str, int] = {}
    for name, shape in model.shapes().items():
        kind = file.tensors[weights.tensor(name)].type_name
        sizes[kind] = sizes.get(kind, 0) + math.prod(shape)
    known = {kind: size for kind, size in sizes.items() if kind in QUANTIZED_TYPES}
    if 2 * sum(known.values()) < sum(sizes.values()):
        return None
    bits = min(QUANTIZED_TYPES[kind] for kind in known)
    return QuantizedVariant(f"int{bits}", lambda name: weights.read_quantized(file, name))


def _folder_bytes(
    file: GgufFile, model: Model, weights: GgufWeights, quantized: QuantizedVariant | None
) -> int:
    """Return what the weights take at most: in float32, and in a second variant what it has of its own.

    Blocks take half as much again as in the file, for their scales are float32; a matrix that is in no blocks
    is there once more in float32, the embedding table aside.
    """
    total = model.size_bytes
    for name, shape in model.shapes().items() if quantized is not None else ():
        tensor = file.tensors[weights.tensor(name)]
        if tensor.type_name in QUANTIZED_TYPES:
            total += tensor.size_bytes * 3 // 2
        elif name != model.embedding:
            total += 4 * math.prod(shape)
    return total


def _check_tensors(file: GgufFile, model: Model, weights: GgufWeights) -> None:
    """Refuse a file with a tensor missing, left over or of a wrong shape, before anything is written."""
    expected = {weights.tensor(name): weights.stored_shape(name) for name in model.shapes()}
    missing = sorted(expected.keys() - file.tensors.keys())
    if missing:
        raise ConvertError(
            f"{file.path} lacks {len(missing)} tensor(s), the first is {missing[0]}: it is incomplete or one "
            "part of a split model. Fetch the whole model."
        )
    read = {ROPE_FACTORS} if file.metadata[ARCHITECTURE] in _SCALED_BY_FACTORS else set()
    unknown = sorted(file.tensors.keys() - expected.keys() - read)
    if unknown:
        reason = (
            "it holds rotary scaling factors, which are not supported for this architecture"
            if unknown[0].startswith("rope_")
            else "the conversion does not know it, and leaving it out would give wrong answers"
        )
        raise ConvertError(
            f"{file.path} holds the tensor {unknown[0]}: {reason}. Use another model, or a .rkllm file "
            "of this one."
        )
    for name, shape in expected.items():
        if file.tensors[name].shape != shape:
            raise ConvertError(
                f"The tensor {name} has shape {file.tensors[name].shape}, the metadata make it {shape}: the "
                "file is damaged. Fetch it again and compare its sha256 with the publisher's."
            )
