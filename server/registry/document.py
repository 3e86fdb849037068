"""YAML text as plain data that remembers the line of every key. Knows no schema.

yaml.compose gives nodes with marks; they are turned into dicts, lists and scalars here, with the safe
constructor's rules, so that no tag can make an object. Bounded against bombs: the size of the text, the depth
of nesting, and the number of values once anchors are expanded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
MAX_VALUES = 50_000
MAX_DEPTH = 40

Path = tuple[str | int, ...]


class DocumentError(Exception):
    """Text that is no usable YAML. `problems` holds pairs of a line, from 1, and what is wrong there."""

    def __init__(self, problems: list[tuple[int, str]]) -> None:
        super().__init__("; ".join(f"line {line}: {message}" for line, message in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Document:
    """The data of a YAML text, and the line of each key and item by its path."""

    data: Any
    lines: dict[Path, int]

    def line(self, path: Path) -> int:
        """Return the line of the path, or of the nearest thing around it that stands in the text."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(content: bytes) -> Document:
    """Return the one document in `content`. Raises DocumentError."""
    if len(content) > MAX_BYTES:
        raise DocumentError([(1, f"{len(content)} bytes is over the limit of {MAX_BYTES}")])
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError([(line, "not UTF-8 text; save the file as UTF-8")]) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError([(line, f"the character #x{error.character:04x} is not allowed")]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise DocumentError([(line, _syntax(text, line, error))]) from error
    except RecursionError:
        raise DocumentError([(1, "nested too deeply")]) from None
    if node is None:
        raise DocumentError([(1, "the file is empty")])
    reader = _Reader()
    data = reader.value(node, ())
    if reader.problems:
        raise DocumentError(sorted(reader.problems))
    return Document(data, reader.lines)


def _syntax(text: str, line: int, error: yaml.MarkedYAMLError) -> str:
    lines = text.splitlines()
    if 0 < line <= len(lines) and "\t" in lines[line - 1]:
        return "not YAML: there is a tab; indent with spaces"
    context = f"{error.context}: " if error.context else ""
    return f"not YAML: {context}{error.problem}"


class _Reader:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.problems: list[tuple[int, str]] = []
        self._scalars = yaml.SafeLoader("")
        self._open: set[int] = set()
        self._values = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError([(line, f"more than {MAX_VALUES} values once anchors are expanded")])
        if len(path) > MAX_DEPTH:
            raise DocumentError([(line, "nested too deeply")])
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            raise DocumentError([(line, "an anchor contains itself")])
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                if node.tag != "tag:yaml.org,2002:seq":
                    return self._refuse_tag(node)
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node, path)
            return self._refuse_tag(node)
        finally:
            self._open.remove(id(node))

    def _refuse_tag(self, node: yaml.Node) -> None:
        self.problems.append((node.start_mark.line + 1, f"the tag {node.tag} is not allowed"))

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        try:
            return self._scalars.construct_object(node)
        except (yaml.constructor.ConstructorError, ValueError):
            self._refuse_tag(node)
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = {**self._merge(value_node, path), **merged}
                continue
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "this"
                self.problems.append((line, f"a key must be text; write {shown} in quotes"))
                continue
            where = (*path, key)
            if key in own:
                first = self.lines[where]
                shown = ".".join(map(str, where))
                self.problems.append((line, f"{shown}: stands here a second time, after line {first}"))
                continue
            self.lines[where] = line
            own[key] = self.value(value_node, where)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self.problems.append((node.start_mark.line + 1, "<<: must name a mapping, or a list of them"))
                continue
            # Under a path of its own: the merged keys must not count as written in this mapping.
            value = self.value(source, (*path, "<<"))
            merged = {**value, **merged} if isinstance(value, dict) else merged
        return merged
