"""Forms of answers: what is accepted, what is refused, and what nobody can make expensive."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from server.errors import InvalidRequest, UnsupportedParameter
from server.generation.request import FormKind
from server.structured.form import Form, NotOfTheForm, make_form
from server.structured.schema import MOST_STEPS

PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
    },
    "patternProperties": {"^x-": {"type": "boolean"}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["red", "green"]}},
}
SOON_S = 5.0


def form(kind: FormKind, value: Any) -> Form:
    return make_form(kind, value, "field")


def refusal(made: Form, text: str) -> NotOfTheForm:
    with pytest.raises(NotOfTheForm) as caught:
        made.accept(text)
    return caught.value


def test_choices_are_exact() -> None:
    made = form("choice", ["yes", "no", " maybe "])
    assert [made.accept(text) for text in ("yes", " no\n", " maybe ")] == ["yes", "no", " maybe "]
    for text in ("Yes", "yes.", "", "yes no", "maybe"):
        assert refusal(made, text).brief == "none of the choices"
    assert "- yes\n- no" in made.instruction


def test_a_regular_expression_matches_the_whole() -> None:
    made = form("regex", r"[0-9]{3}-[0-9]{4}")
    assert made.accept(" 555-1234\n") == "555-1234"
    for text in ("555-12345", "call 555-1234", "", "\ud800"):
        refusal(made, text)
    assert form("regex", r"\s*x\s*").accept(" x ") == " x "
    assert form("regex", "[一-鿿]+").accept("玉山") == "玉山"


def test_a_regular_expression_that_takes_other_engines_for_ever() -> None:
    began = time.monotonic()
    refusal(form("regex", "(a*)*b"), "a" * 20_000)
    refusal(form("regex", "(a|aa)+$"), "a" * 20_000 + "!")
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"a": 1}', '{"a": 1}'),
        (' {"a":\n1} ', '{"a":\n1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('```\n{"a": 1}\n```', '{"a": 1}'),
        ('{"a": "```"}', '{"a": "```"}'),
    ],
)
def test_any_json_object(text: str, accepted: str) -> None:
    assert form("json_object", None).accept(text) == accepted


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        ("", "no valid JSON"),
        ("{", "no valid JSON"),
        ('Here it is: {"a": 1}', "no valid JSON"),
        ('{"a": 1} {"b": 2}', "no valid JSON"),
        ('{"a": NaN}', "no valid JSON"),
        ('{"a": -Infinity}', "no valid JSON"),
        ("[" * 100_000, "no valid JSON"),
        ("1" * 10_000, "no valid JSON"),
        ("```python\n{}\n```", "no valid JSON"),
        ("[1]", "no JSON object"),
        ("null", "no JSON object"),
    ],
)
def test_what_is_no_json_object(text: str, brief: str) -> None:
    assert refusal(form("json_object", None), text).brief == brief


@pytest.mark.parametrize(
    "value",
    [
        {"name": "Ann", "age": 3},
        {"name": "Ann", "age": 3.0, "tags": ["red", "green"], "x-own": True},
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_valid_against_a_schema(value: Any, as_text: bool) -> None:
    made = form("json_schema", json.dumps(PERSON) if as_text else PERSON)
    text = json.dumps(value)
    assert made.accept(text) == text
    assert '"minimum": 0' in made.instruction


@pytest.mark.parametrize(
    ("value", "where", "keyword"),
    [
        ([], "$", "type"),
        ({"name": "Ann"}, "$", "required"),
        ({"name": "Ann", "age": "3"}, "$.age", "type"),
        ({"name": "Ann", "age": -1}, "$.age", "minimum"),
        ({"name": "ann", "age": 1}, "$.name", "pattern"),
        ({"name": "Ann", "age": 1, "tags": ["blue"]}, "$.tags[0]", "enum"),
        ({"name": "Ann", "age": 1, "tags": ["red", "red"]}, "$.tags", "uniqueItems"),
        ({"name": "Ann", "age": 1, "x-own": 1}, "$['x-own']", "type"),
        ({"name": "Ann", "age": 1, "secret": 1}, "$", "additionalProperties"),
    ],
)
def test_not_valid_against_a_schema(value: Any, where: str, keyword: str) -> None:
    found = refusal(form("json_schema", PERSON), json.dumps(value))
    assert f"{where}: " in found.problem
    assert found.brief == f"fails the schema's {keyword}"  # nothing of the answer


def test_a_schema_for_what_is_left() -> None:
    schema = {"patternProperties": {"^n": {}}, "additionalProperties": {"type": "integer"}}
    made = form("json_schema", schema)
    made.accept('{"n": "x", "m": 1}')
    assert "type" in refusal(made, '{"m": "x"}').brief


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("choice", "yes"),
        ("choice", []),
        ("choice", [1]),
        ("choice", [""]),
        ("choice", ["x"] * 257),
        ("choice", ["x" * 1001]),
        ("regex", ["x"]),
        ("regex", "("),
        ("regex", "(?=x)"),
        ("regex", r"(x)\1"),
        ("regex", "x" * 2001),
        ("regex", "(x{1000}){1000}"),
        ("regex", "\ud800"),
        ("json_schema", "no JSON"),
        ("json_schema", [1]),
        ("json_schema", {"type": "nothing"}),
        ("json_schema", {"properties": []}),
        ("json_schema", {"minimum": "1"}),
        ("json_schema", {"pattern": "(?=x)"}),
        ("json_schema", {"patternProperties": {"(": {}}}),
        ("json_schema", {"$ref": "#/$defs/missing"}),
        ("json_schema", {"$ref": "https://example.org/schema"}),
        ("json_schema", {"$ref": "file:///etc/passwd"}),
        ("json_schema", {"$ref": "https://json-schema.org/draft/2020-12/schema"}),
        ("json_schema", {"description": "x" * 40_000}),
        ("json_schema", {"pattern": "x" * 2_001}),
        ("json_schema", {"patternProperties": {f"^x{n}$": {} for n in range(33)}}),
        ("json_schema", {"pattern": r"\p{L}{0,400}"}),
        ("regex", r"\p{L}{0,400}"),
    ],
)
def test_forms_that_make_no_sense(kind: FormKind, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        form(kind, value)
    assert caught.value.param == "field"
    assert len(caught.value.message) < 4_000


def test_a_schema_that_is_too_long_is_refused_before_its_patterns_are_compiled() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        form("json_schema", {"allOf": [{"pattern": f"(x{n}"} for n in range(4_000)]})


def test_patterns_that_people_use_are_taken() -> None:
    names = {"properties": {f"p{n}": {"pattern": r"^\p{Lu}\p{L}{0,99}$"} for n in range(40)}}
    form("json_schema", names).accept('{"p0": "Ægir"}')
    form("json_schema", {"patternProperties": {f"^x{n}$": {} for n in range(32)}})


def test_halves_of_characters() -> None:
    made = form("json_schema", {"properties": {"a": {"pattern": "^x"}}, "additionalProperties": False})
    assert "half of a character" in refusal(made, r'{"a": "\ud83d"}').problem
    closed = form("json_schema", {"additionalProperties": {"type": "integer"}})
    refusal(closed, r'{"\ud83d": "\ud83d"}').problem.encode()
    form("json_schema", {"description": "\ud83d"}).instruction.encode()
    with pytest.raises(InvalidRequest) as caught:
        form("json_schema", {"properties": {"\ud83d": 1}})
    caught.value.message.encode()


def test_schemas_nested_too_deeply() -> None:
    for depth in (70, 200, 900, 5_000):
        with pytest.raises(InvalidRequest):
            form("json_schema", '{"not":' * depth + "{}" + "}" * depth)


def test_keywords_that_are_not_supported() -> None:
    with pytest.raises(UnsupportedParameter):
        form("json_schema", {"allOf": [{"unevaluatedProperties": False}]})


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema each level of which checks the next one twice."""
    levels_of = {
        f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]}
        for n in range(levels)
    }
    return {"$ref": "#/$defs/l0", "$defs": {**levels_of, f"l{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (doubling(40), "{}"),
        ({"$ref": "#"}, "{}"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "{}"),
        ({"items": {"enum": list(range(3_000))}}, json.dumps([2_999] * 5_000)),
        ({"uniqueItems": True}, json.dumps([{"n": n} for n in range(5_000)])),
        ({"items": doubling(4) | {"$defs": {}}, "$defs": doubling(4)["$defs"]}, json.dumps([{}] * 5_000)),
    ],
)
def test_schemas_that_would_take_for_ever_are_given_up(schema: Any, text: str) -> None:
    made = form("json_schema", schema)
    began = time.monotonic()
    assert refusal(made, text).brief == "too much work to check"
    assert time.monotonic() - began < SOON_S
    assert MOST_STEPS < 1_000_000


def test_patterns_in_a_schema_take_linear_time() -> None:
    schema = {
        "properties": {"a": {"pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": False},
        "additionalProperties": {"pattern": "(c|cc)+$"},
    }
    began = time.monotonic()
    value = {"a": "a" * 5_000 + "!", "b" * 5_000 + "!": 1, "c": "c" * 5_000 + "!"}
    refusal(form("json_schema", schema), json.dumps(value))
    assert time.monotonic() - began < SOON_S


def test_another_drafts_rules_are_not_brought_in() -> None:
    # A nested $schema would be checked by plain keywords, and by their plain `re`.
    nested = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "(a+)+$"}
    began = time.monotonic()
    refusal(form("json_schema", {"properties": {"a": nested}}), json.dumps({"a": "a" * 5_000 + "!"}))
    assert time.monotonic() - began < SOON_S
