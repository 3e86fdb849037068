"""docs/hybrid.md names every field of the folder's description and every architecture, and no other."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from backends.hybrid.meta import File, Meta, RopeScaling
from backends.hybrid.tensors import KNOWN_ROLES
from convert.architectures import ARCHITECTURES
from convert.gguf_config import READERS
from convert.gguf_tokenizer import PRE_TOKENIZERS

PAGE = Path(__file__).parents[2] / "docs" / "hybrid.md"


def rows(header: str) -> list[str]:
    """The first cells of the table whose first line begins so."""
    lines = PAGE.read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(header))
    cells = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells += re.findall(r"`([^`]+)`", line.split("|")[1])
    return cells


def fields(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield prefix + field.encode_name
        annotation = field.type
        if isinstance(annotation, types.UnionType):
            annotation = next(one for one in annotation.__args__ if one is not type(None))
        path = prefix + field.encode_name
        if typing.get_origin(annotation) is list:
            yield from nested(typing.get_args(annotation)[0], f"{path}[].")
        elif typing.get_origin(annotation) is dict:
            yield from nested(typing.get_args(annotation)[1], f"{path}.*.")
        else:
            yield from nested(annotation, f"{path}.")


def nested(annotation: Any, prefix: str) -> Iterator[str]:
    """Files are described once, and outputs are as inputs."""
    described = "outputs[]" in prefix or annotation is File
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and not described:
        yield from fields(annotation, prefix)


def test_every_field_stands_in_the_table_and_no_other() -> None:
    assert rows("| field |") == list(fields(Meta))


def test_roles_architectures_and_scalings() -> None:
    assert set(rows("| role |")) == KNOWN_ROLES
    assert sorted(rows("| `model_type` |")) == sorted(ARCHITECTURES)
    scalings = typing.get_args(typing.get_type_hints(RopeScaling)["type"])
    assert all(f"`{name}`" in PAGE.read_text() for name in scalings)


def test_what_gguf_files_may_have() -> None:
    assert rows("| architecture | models |") == list(READERS)
    named = re.search(r"pre-tokenizers ((?:`[^`]+`[,.]\s)+)", PAGE.read_text())
    assert named is not None
    assert re.findall(r"`([^`]+)`", named[1]) == sorted(PRE_TOKENIZERS)
