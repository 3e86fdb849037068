"""Hugging Face checkpoint -> hybrid folder: reads one weight at a time, writes float32 ONNX segments.

Memory: one weight as float32 and half of it again, and while the result is measured one segment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from backends.files import sha256_of
from backends.hybrid.meta import License
from convert.architectures import ARCHITECTURES
from convert.errors import ConvertError
from convert.folder import check_free_space, check_name, check_target, new_folder
from convert.hf_config import CONFIG_FILE, Config, read_config
from convert.hf_papers import chat_template, eos_token_ids, license_of, read_tokenizer
from convert.measured import write_measured
from convert.model import Model
from convert.safetensors_file import Checkpoint, open_checkpoint
from convert.writer import LENGTHS, Papers, Progress

_BESIDE_WEIGHTS = 64 * 1024 * 1024  # bytes: tokenizer, graphs, page borders
# What old versions of transformers stored and nothing reads.
_BUFFERS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def convert_hf(
    directory: Path,
    out: Path,
    *,
    license: License | None = None,
    overwrite: bool = False,
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda done, what: None,
) -> Path:
    """Convert a checkpoint directory to the hybrid folder `out`, which appears only when it is whole.

    license: used instead of what the checkpoint says. overwrite: replace a hybrid folder of that name.
    lengths: tokens a call the folder is made for, 1 first. progress: called with the share done (0 to 1) and
    what is being done. Raises ConvertError.
    """
    check_target(out, overwrite=overwrite)
    check_name(directory)
    values = read_config(directory / CONFIG_FILE)
    try:
        model = _model(values)
        checkpoint = open_checkpoint(directory)
        _check_tensors(directory, checkpoint, model)
        progress(0.0, f"reading {directory.resolve().name}")
        text, tokenizer = read_tokenizer(directory)
        name = directory.resolve().name
        found, license_text, notice_text = license_of(directory, name)
        papers = Papers(
            name=name,
            tokenizer=text,
            chat_template=chat_template(directory),
            eos_token_ids=_within(eos_token_ids(directory, values, tokenizer), model),
            license=license or found,
            source=_source(directory, checkpoint),
            lengths=lengths,
            license_text=license_text,
            notice_text=notice_text,
            progress=progress,
        )
    except OSError as error:
        raise ConvertError(
            f"{error.filename or directory} cannot be read: {error.strerror}. Check the path and its rights."
        ) from error
    check_free_space(out, model.size_bytes + _BESIDE_WEIGHTS)
    with new_folder(out, overwrite=overwrite) as folder:
        bos = values.get("bos_token_id")
        write_measured(
            folder,
            model,
            checkpoint.read,
            papers,
            tokenizer=tokenizer,
            bos=bos if type(bos) is int else None,
        )
    return out


def _model(values: dict[str, object]) -> Model:
    config = Config(values)
    kind = config.find("model_type", str)
    if kind is None or kind not in ARCHITECTURES:
        raise ConvertError(
            f"{CONFIG_FILE}: the model type is {kind!r}; supported are: {', '.join(ARCHITECTURES)}. "
            "Use a model of one of those, or a .rkllm file of this one."
        )
    model = ARCHITECTURES[kind](config)
    config.finish()
    return model


def _check_tensors(directory: Path, checkpoint: Checkpoint, model: Model) -> None:
    """Refuse a checkpoint with a tensor missing, left over or of a wrong shape, before writing anything."""
    expected = model.shapes()
    missing = sorted(expected.keys() - checkpoint.tensors.keys())
    if missing:
        raise ConvertError(
            f"{directory} lacks {len(missing)} tensor(s), the first is {missing[0]}: it is "
            f"incomplete, or not the architecture that {CONFIG_FILE} names. Fetch the whole model."
        )
    spare = {"lm_head.weight"} if model.lm_head is None else set()  # a copy of the table, by some programs
    unknown = sorted(
        name for name in checkpoint.tensors.keys() - expected.keys() - spare if not _BUFFERS.fullmatch(name)
    )
    if unknown:
        raise ConvertError(
            f"{directory} holds {len(unknown)} tensor(s) that the conversion does not know, the first is "
            f"{unknown[0]}: leaving it out would give wrong answers. Use another model, or a .rkllm "
            "file of it."
        )
    for name, shape in expected.items():
        if checkpoint.tensors[name].shape != shape:
            raise ConvertError(
                f"The tensor {name} has shape {checkpoint.tensors[name].shape}, {CONFIG_FILE} makes "
                f"it {shape}: the files do not belong together. Fetch them again from the publisher."
            )


def _within(ids: list[int], model: Model) -> list[int]:
    if max(ids) >= model.vocab_size or min(ids) < 0:
        raise ConvertError(
            f"The checkpoint names {ids} as the end of an answer in a vocabulary of "
            f"{model.vocab_size}. Fetch the publisher's files."
        )
    return ids


def _source(directory: Path, checkpoint: Checkpoint) -> dict[str, str]:
    files = [directory / CONFIG_FILE, *checkpoint.files]
    return {"format": "safetensors"} | {f"sha256 of {path.name}": sha256_of(path) for path in files}
