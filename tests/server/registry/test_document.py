"""YAML with the line of every key, and what is refused before any schema is looked at."""

from __future__ import annotations

import pytest

from server.registry.document import MAX_BYTES, DocumentError, read_document


def problems(content: bytes | str) -> tuple[tuple[int, str], ...]:
    with pytest.raises(DocumentError) as caught:
        read_document(content.encode() if isinstance(content, str) else content)
    return caught.value.problems


def test_every_key_and_item_has_its_line() -> None:
    document = read_document(b"# a comment\na:\n  b: 1\n  c: {d: 2,\n    e: 3}\nf:\n- x\n-\n  - y\n")
    assert document.data == {"a": {"b": 1, "c": {"d": 2, "e": 3}}, "f": ["x", ["y"]]}
    lines = {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", "d"): 4,
        ("a", "c", "e"): 5,
        ("f",): 6,
        ("f", 0): 7,
        ("f", 1, 0): 9,
    }
    assert {path: document.line(path) for path in lines} == lines


def test_a_path_that_is_not_there_has_the_line_of_what_is_around_it() -> None:
    document = read_document(b"a:\n  b:\n    c: 1\n")
    assert document.line(("a", "b", "missing", 3)) == 2
    assert document.line(("missing",)) == 1


def test_anchors_and_merge_keys() -> None:
    document = read_document(b"a: &x {p: 1, q: 2}\nb: *x\nc:\n  q: 3\n  <<: *x\n")
    assert document.data == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 2}, "c": {"p": 1, "q": 3}}


def test_of_several_merged_mappings_the_first_wins() -> None:
    document = read_document(b"a: &x {p: 1}\nb: &y {p: 2, q: 2}\nc:\n  <<: [*x, *y]\n")
    assert document.data["c"] == {"p": 1, "q": 2}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("a: 1\n\tb: 2\n", 2, "not YAML: there is a tab; indent with spaces"),
        ("a:\n  b: 1\n c: 2\n", 3, "not YAML: "),
        ("a: [1, 2\nb: 3\n", 2, "not YAML: "),
        ("a: 'b\n", 2, "not YAML: "),
        ("a: 1\n---\nb: 2\n", 2, "not YAML: expected a single document"),
        ("a: *nobody\n", 1, "not YAML: found undefined alias"),
        ("a: &x\n  b: *x\n", 1, "an anchor contains itself"),
        ("a: !!python/object:os.system x\n", 1, "the tag tag:yaml.org,2002:python/object:os.system is not"),
        ("a:\n  !thing {b: 1}\n", 2, "the tag !thing is not allowed"),
        ("a: !!set {b}\n", 1, "the tag tag:yaml.org,2002:set is not allowed"),
        ("a: 1\nb: 2\na: 3\n", 3, "a: stands here a second time, after line 1"),
        ("a:\n  on: 1\n", 2, "a key must be text; write on in quotes"),
        ("a:\n  1: 1\n", 2, "a key must be text; write 1 in quotes"),
        ("? [a]\n: 1\n", 1, "a key must be text; write this in quotes"),
        ("a: {<<: 1}\n", 1, "<<: must name a mapping, or a list of them"),
        ("a: 2026-13-45\n", 1, "the tag tag:yaml.org,2002:timestamp is not allowed"),
        ("a: \x01\n", 1, "the character #x0001 is not allowed"),
        ("[" * 3000, 1, "nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60, 1, "nested too deeply"),
    ],
)
def test_what_is_refused(text: str, line: int, message: str) -> None:
    ((found_line, found),) = problems(text)
    assert found_line == line
    assert found.startswith(message)


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    assert problems(b"a: 1\nb: \xe9\n") == ((2, "not UTF-8 text; save the file as UTF-8"),)


def test_several_problems_are_told_at_once_in_the_order_of_lines() -> None:
    found = problems("a: !x 1\nb: 1\nb: 2\nc: {3: 1}\n")
    assert [line for line, _ in found] == [1, 3, 4]


def test_a_bomb_of_anchors_is_refused_before_it_goes_off() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    ((_, message),) = problems("\n".join(levels))
    assert "once anchors are expanded" in message


def test_a_huge_file_is_refused_unread() -> None:
    ((_, message),) = problems(b"#" * (MAX_BYTES + 1))
    assert message == f"{MAX_BYTES + 1} bytes is over the limit of {MAX_BYTES}"
