"""The forms of answers: what a model is told, and what of its answer is passed on. Pure; knows no model.

What clients send can cost no more than it is worth: patterns go to an engine that takes linear time, and the
work on a schema is counted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import re2

from server.errors import InvalidRequest
from server.generation.request import FormKind
from server.structured.patterns import compile_pattern
from server.structured.schema import Schema, encodable

MOST_CHOICES = 256
LONGEST_CHOICE = 1_000
_FENCE = "```"


class NotOfTheForm(Exception):
    """An answer cannot be passed on. `problem` is for the model, and may quote what it wrote.

    `brief` says the same in words that nobody has sent, for errors and logs.
    """

    def __init__(self, problem: str, brief: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.brief = brief


class Form(ABC):
    """One form. `instruction` is what a model is told."""

    instruction: str

    @abstractmethod
    def accept(self, text: str) -> str:
        """Return what of an answer is passed on. Raises NotOfTheForm."""


class Choice(Form):
    """One of some texts, to the letter."""

    def __init__(self, choices: object, param: str) -> None:
        """Raises InvalidRequest."""
        if (
            not isinstance(choices, list)
            or not 0 < len(choices) <= MOST_CHOICES
            or not all(isinstance(one, str) and 0 < len(one) <= LONGEST_CHOICE for one in choices)
        ):
            raise InvalidRequest(
                f"{param} must be a list of 1 to {MOST_CHOICES} strings of up to {LONGEST_CHOICE} characters",
                param,
            )
        self._choices: Sequence[str] = choices
        listed = "\n".join(f"- {one}" for one in choices)
        self.instruction = (
            f"Answer with exactly one of these, copied to the letter, and with nothing else:\n{listed}"
        )

    def accept(self, text: str) -> str:
        """See Form. White space around it is no part of an answer, unless the choice has it."""
        for shown in (text, text.strip()):
            if shown in self._choices:
                return shown
        raise NotOfTheForm("It is none of the given choices.", "none of the choices")


class Regex(Form):
    """A text that a regular expression matches as a whole."""

    def __init__(self, pattern: object, param: str) -> None:
        """Raises InvalidRequest, also for what only engines can match that may take for ever."""
        if not isinstance(pattern, str):
            raise InvalidRequest(f"{param} must be a regular expression, a string", param)
        self._pattern = compile_pattern(pattern, param)
        self.instruction = (
            "Answer only with a text that this regular expression matches as a whole, without quotes or code "
            f"fence:\n{pattern}"
        )

    def accept(self, text: str) -> str:
        """See Form. White space around it is no part of an answer, unless the expression wants it."""
        for shown in (text, text.strip()):
            if _matches(self._pattern, shown):
                return shown
        raise NotOfTheForm(
            "The regular expression does not match it as a whole.", "not matched by the expression"
        )


class Json(Form):
    """JSON: any object, or what a schema describes."""

    _ONLY: ClassVar = "Answer with JSON only, without any other text and without a code fence."

    def __init__(self, schema: object, param: str) -> None:
        """schema None: any object. Raises InvalidRequest."""
        self._schema = None if schema is None else Schema(schema, param)
        if self._schema is None:
            self.instruction = f"{self._ONLY} It must be one JSON object."
        else:
            shown = encodable(json.dumps(schema, ensure_ascii=False))
            self.instruction = f"{self._ONLY} It must be valid against this JSON schema:\n{shown}"

    def accept(self, text: str) -> str:
        """See Form. A code fence around the whole answer is taken off."""
        shown = _unfenced(text.strip())
        try:
            value = json.loads(shown, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise NotOfTheForm(f"It is no valid JSON: {error}.", "no valid JSON") from None
        if self._schema is None:
            if not isinstance(value, dict):
                raise NotOfTheForm("It is no JSON object.", "no JSON object")
        elif (found := self._schema.problem(value)) is not None:
            raise NotOfTheForm(f"It is not valid against the schema: {found.words}.", found.brief)
        return shown


def make_form(kind: FormKind, value: object, param: str) -> Form:
    """Return the form a field of a request asks for. Raises InvalidRequest and UnsupportedParameter."""
    match kind:
        case "choice":
            return Choice(value, param)
        case "regex":
            return Regex(value, param)
        case "json_object":
            return Json(None, param)
        case "json_schema":
            return Json(_parsed(value, param), param)


def _parsed(schema: object, param: str) -> object:
    """Return a schema, which may have come as text."""
    if schema is None:
        raise InvalidRequest(f"{param} needs a JSON schema", param)
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} must be a JSON schema, and is no valid JSON: {error}", param) from None


def _matches(pattern: Any, text: str) -> bool:
    try:
        return pattern.fullmatch(text) is not None
    except (re2.error, UnicodeError):
        return False


def _unfenced(text: str) -> str:
    """Return what is inside a code fence that is all of a text; models put one around JSON out of habit."""
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) > 2 * len(_FENCE)):
        return text
    first, found, rest = text[len(_FENCE) : -len(_FENCE)].partition("\n")
    return rest.strip() if found and first.strip().lower() in ("", "json") else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
