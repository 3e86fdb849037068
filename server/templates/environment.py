"""The sandbox templates run in, with what Hugging Face's chat templates expect to find there.

Knows no entry and no message. A template comes with a model from wherever its owner got it, so it is not
trusted: Jinja's immutable sandbox keeps it from Python's internals and from what it is given; it has no
loader, so it reads no file; and its work is bounded, see `bounded`.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from server.errors import UnsupportedParameter
from server.templates.bounded import BoundedEnvironment
from server.templates.errors import TemplateError
from server.templates.guard import guard, unguard, unguard_all

LONGEST_TIME = 200  # characters of a form for dates
E = TypeVar("E", bound=jinja2.Environment)
BUILTIN = Path(__file__).parent / "builtin"


class Complaint(jinja2.TemplateError):
    """What a template says about a conversation it does not take, by calling raise_exception."""


def model_environment() -> BoundedEnvironment:
    """Return an environment for templates that come with models. Their work is bounded."""
    environment = _furnished(BoundedEnvironment(loader=jinja2.DictLoader({}), **_OPTIONS))
    environment.bound_filters()
    return environment


def builtin_environment() -> jinja2.Environment:
    """Return an environment for the built-in templates. It finds them by name, and has two helpers more.

    `unsupported(parameter, why)` refuses a request; the test `containing` looks into guarded text.
    """
    environment = _furnished(
        ImmutableSandboxedEnvironment(loader=jinja2.FileSystemLoader(BUILTIN), **_OPTIONS)
    )
    environment.globals["unsupported"] = _unsupported
    environment.tests["containing"] = _containing
    return environment


def compile_source(environment: jinja2.Environment, source: str, name: str) -> jinja2.Template:
    """Compile a template's text. `name` is the file it came from. Raises TemplateError with file and line."""
    try:
        code = environment.compile(source, name, name)
    except jinja2.TemplateSyntaxError as error:
        raise _broken(f"{name}, line {error.lineno}", (error.message or "a mistake").rstrip(".")) from error
    except (ValueError, SyntaxError, RecursionError, MemoryError, SecurityError) as error:
        # Python's own limits, which Jinja does not look after: numbers, nesting, blocks in blocks.
        raise _broken(name, f"{error}") from error
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def _broken(where: str, what: str) -> TemplateError:
    return TemplateError(
        f"{where}: the chat template does not compile: {what}. "
        "Mend the file, pull the model again, or name a built-in template in its entry."
    )


class _GenerationTag(Extension):
    """{% generation %} ... {% endgeneration %} marks answers for training. Only its content counts here."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so, as a variable of the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _PlainNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore, which Python gives a meaning."""

    def __repr__(self) -> str:
        return "<namespace>"  # what it holds may be more than anybody wants to see

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


_OPTIONS: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "extensions": [_GenerationTag, loopcontrols],
    "auto_reload": False,
}


def _furnished(environment: E) -> E:
    """Add what Hugging Face's chat templates expect."""
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _namespace,
        "dict": _dict,
    }
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Hugging Face's semantics: no escapes for HTML, keys in their order. The whole of it is text of a client.
    return guard(
        json.dumps(
            unguard_all(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
    )


def _raise_exception(message: object) -> None:
    raise Complaint(unguard(str(message)))


def _strftime_now(form: str) -> str:
    if len(form) > LONGEST_TIME or re.search(r"\d{3}", form):  # the C library pads to any width
        raise SecurityError("its time is too long")
    return datetime.now().strftime(form)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    attributes = dict(*args, **kwargs)
    for name in attributes:
        _check_name(name)
    return _PlainNamespace(attributes)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a template has no {name!r}")


def _unsupported(parameter: str, why: str) -> None:
    raise UnsupportedParameter(why, parameter)


def _containing(text: str, *pieces: str) -> bool:
    plain = unguard(text)
    return any(piece in plain for piece in pieces)
