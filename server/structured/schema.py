"""JSON schemas from clients: checked before they are used, and used within bounds.

The validation is jsonschema's. What it would do without bounds is replaced: patterns in its own keywords are
matched by `re`, whose time can grow beyond all measure; references can multiply the work without end; and one
to another place would be fetched from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest, UnsupportedParameter
from server.structured.patterns import compile_pattern

LONGEST_SCHEMA = 32_768
DEEPEST_SCHEMA = 64
MOST_PATTERNS = 32
MOST_STEPS = 50_000
MOST_UNIQUE = 500  # uniqueItems may compare every pair

# They match patterns by themselves, across several other keywords.
_NOT_SUPPORTED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")


class TooMuchWork(Exception):
    """Checking an answer against a schema takes more steps than it may."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a value; `brief` without a word of it or of the schema's author."""

    words: str
    brief: str


class Schema:
    """A schema that can be used."""

    def __init__(self, schema: object, param: str) -> None:
        """Raises InvalidRequest for one that is wrong or too large, and UnsupportedParameter."""
        # 7 MB and a quarter of a second, for servers on which somebody asks for it.
        from jsonschema import Draft202012Validator, FormatChecker
        from jsonschema.exceptions import SchemaError

        if not isinstance(schema, dict):
            raise InvalidRequest(f"{param} must be a JSON schema, an object", param)
        _check_length(schema, param)  # before anything is made of it
        self._patterns: dict[str, Any] = {}
        self._schema = self._cleaned(schema, param, 0)
        try:
            # No formats: that of patterns would compile them with `re`.
            Draft202012Validator.check_schema(self._schema, format_checker=FormatChecker(formats=()))
        except SchemaError as error:
            raise InvalidRequest(
                encodable(f"{param}: {error.json_path} of the schema: {error.message}"), param
            ) from None
        self._check_references(param)

    def problem(self, value: object) -> Problem | None:
        """Return what is wrong with a value, None if nothing is."""
        from referencing.exceptions import Unresolvable

        try:
            error = next(self._validator().iter_errors(value), None)
        except (TooMuchWork, RecursionError, ArithmeticError, Unresolvable):
            return Problem("checking it took too long; make it simpler", "too much work to check")
        except UnicodeEncodeError:  # a lone surrogate, which no pattern can be tried on
            return Problem("it holds half of a character", "holds half of a character")
        if error is None:
            return None
        return Problem(
            encodable(f"{error.json_path}: {error.message}"), f"fails the schema's {error.validator}"
        )

    def _cleaned(self, node: Any, param: str, depth: int) -> Any:
        """Return a copy without `$schema`, which would bring in other rules. Compiles the patterns."""
        if depth > DEEPEST_SCHEMA:
            raise _too_deep(param)
        if isinstance(node, list):
            return [self._cleaned(one, param, depth + 1) for one in node]
        if not isinstance(node, dict):
            return node
        for key in _NOT_SUPPORTED:
            if key in node:
                raise UnsupportedParameter(f"{param}: {key} in a schema is not supported here", param)
        self._take_patterns(node, param)
        return {
            key: self._cleaned(one, param, depth + 1)
            for key, one in node.items()
            if not (key == "$schema" and isinstance(one, str))
        }

    def _take_patterns(self, node: Mapping[str, Any], param: str) -> None:
        one, several = node.get("pattern"), node.get("patternProperties")
        for pattern in ([one] if isinstance(one, str) else []) + (
            list(several) if isinstance(several, dict) else []
        ):
            if pattern in self._patterns:
                continue
            if len(self._patterns) == MOST_PATTERNS:
                raise InvalidRequest(
                    f"{param}: the schema has more than {MOST_PATTERNS} regular expressions; use fewer", param
                )
            self._patterns[pattern] = compile_pattern(pattern, param)

    def _check_references(self, param: str) -> None:
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012

        root = DRAFT202012.create_resource(self._schema)
        resolver = Registry().with_resource("", root).resolver()
        for reference in _references(self._schema):
            try:
                resolver.lookup(reference)
            except (Unresolvable, ValueError):
                raise InvalidRequest(
                    f"{param}: the schema refers to {reference[:100]!r}, which is not in it", param
                ) from None

    def _validator(self) -> Any:
        """Return a validator that gives up after so many steps. Made anew for each value."""
        from jsonschema import Draft202012Validator, validators
        from jsonschema.exceptions import ValidationError
        from referencing import Registry

        steps = 0

        def counted(keyword: Any) -> Callable[..., Iterator[Any]]:
            def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
                nonlocal steps
                steps += 1 + (len(value) if isinstance(value, list | dict) else 0)
                if steps > MOST_STEPS:
                    raise TooMuchWork
                yield from keyword(validator, value, instance, schema) or ()

            return checked

        def pattern(validator: Any, value: str, instance: Any, schema: Any) -> Iterator[Any]:
            if validator.is_type(instance, "string") and not self._patterns[value].search(instance):
                yield ValidationError(f"{instance!r} does not match {value!r}")

        def pattern_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            if validator.is_type(instance, "object"):
                for one, inner in value.items():
                    for key in instance:
                        if self._patterns[one].search(key):
                            yield from validator.descend(instance[key], inner, path=key, schema_path=one)

        def additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            if not validator.is_type(instance, "object"):
                return
            named = schema.get("properties", {})
            matched = [self._patterns[one] for one in schema.get("patternProperties", {})]
            for key in instance:
                if key in named or any(one.search(key) for one in matched):
                    continue
                if value is False:
                    yield ValidationError(f"{key!r} is no property it may have")
                else:
                    yield from validator.descend(instance[key], value, path=key)

        plain_unique = Draft202012Validator.VALIDATORS["uniqueItems"]

        def unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            if isinstance(instance, list) and len(instance) > MOST_UNIQUE:
                raise TooMuchWork
            yield from plain_unique(validator, value, instance, schema) or ()

        own = {
            "pattern": pattern,
            "patternProperties": pattern_properties,
            "additionalProperties": additional_properties,
            "uniqueItems": unique_items,
        }
        keywords = {
            name: counted(own.get(name, keyword)) for name, keyword in Draft202012Validator.VALIDATORS.items()
        }
        extend: Any = validators.extend  # which has no types
        bounded = extend(Draft202012Validator, keywords)
        return bounded(self._schema, registry=Registry())  # an empty one: nothing is fetched from anywhere


def encodable(text: str) -> str:
    """Return a text with the halves of characters in it, which no encoding has, written as JSON would."""
    return text.encode(errors="backslashreplace").decode()


def _check_length(schema: object, param: str) -> None:
    try:
        length = len(json.dumps(schema))
    except RecursionError:
        raise _too_deep(param) from None
    if length > LONGEST_SCHEMA:
        raise InvalidRequest(f"{param}: the schema is longer than {LONGEST_SCHEMA} characters", param)


def _too_deep(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: the schema is nested deeper than {DEEPEST_SCHEMA}", param)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _references(one)
    elif isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for one in node.values():
            yield from _references(one)
