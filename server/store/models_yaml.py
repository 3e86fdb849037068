"""Writes an entry into a models.yaml that a person keeps: nothing else in it changes, no comment and no
blank.

The text is inserted, not written anew. What comes of it is read back, and where anything but the new entry
differs nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from pathlib import Path
from typing import Any

import yaml

from server.registry.document import DocumentError, read_document
from server.store.atomic import READABLE, write_whole
from server.store.errors import StoreError

_NEW = "version: 1\nmodels:\n"


class CannotInsert(StoreError):
    """A models.yaml in a form that an entry cannot be put into safely."""


def with_entry(text: str, entry_id: str, block: str) -> str:
    """Return a models.yaml with one more entry, at the end of its models.

    text: of the file, empty for a new one. block: the entry, `id:` and its keys below, not indented. Raises
    CannotInsert.
    """
    if not text.strip():
        return _NEW + textwrap.indent(block, "  ")
    before = _data(text)
    if entry_id in _models(before):
        raise CannotInsert(f"{entry_id} is in it already")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # as its data is a dict
    found = next((pair for pair in root.value if pair[0].value == "models"), None)
    if found is None or root.flow_style:
        raise CannotInsert("it has no block models:")
    key, models = found
    if isinstance(models, yaml.MappingNode):
        if models.flow_style or not models.value:
            raise CannotInsert("its models stand in braces")
        indent = models.value[0][0].start_mark.column
        line = _last_line(models) + 1
    else:
        indent, line = 2, key.end_mark.line + 1
    lines = text.splitlines(keepends=True)
    if all(pair[0].start_mark.line <= key.start_mark.line for pair in root.value):
        line = len(lines)  # the last block: what is commented out at the end stays where it belongs
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\r\n" if "\r\n" in text else "\n"
    block = textwrap.indent(block, " " * indent)
    lines[line:line] = [block.replace("\n", "\r\n") if "\r\n" in text else block]
    result = "".join(lines)
    after = _data(result)
    added = dict(_models(after))
    if added.pop(entry_id, None) is None or added != _models(before) or after.keys() != before.keys():
        raise CannotInsert("the entry would not stand where it belongs")
    return result


def add_entry(file: Path, entry_id: str, block: str) -> None:
    """Put an entry into a models.yaml, made if need be; owner and mode stay. Raises CannotInsert, OSError."""
    file = file.resolve()  # behind a symbolic link, the file itself is what changes
    try:
        text, state = file.read_bytes().decode(), file.stat()  # its line ends stay
    except FileNotFoundError:
        text, state = "", None
    except UnicodeDecodeError as error:
        raise CannotInsert("it is not UTF-8 text") from error
    changed = with_entry(text, entry_id, block).encode()
    write_whole(file, changed, READABLE if state is None else state.st_mode & 0o777)
    if state is not None:
        with contextlib.suppress(PermissionError):
            os.chown(file, state.st_uid, state.st_gid)


def _data(text: str) -> dict[str, Any]:
    try:
        data = read_document(text.encode()).data
    except DocumentError as error:
        raise CannotInsert(f"it cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CannotInsert("it is no models.yaml")
    return data


def _models(data: dict[str, Any]) -> dict[str, Any]:
    models = data.get("models") or {}
    if not isinstance(models, dict):
        raise CannotInsert("its models are no block")
    return models


def _last_line(node: yaml.Node) -> int:
    """Return the last line that something of a node stands on; comments behind it do not count."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line
