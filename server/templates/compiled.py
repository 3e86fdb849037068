"""A template that is ready to run, and what is said of one that does what it may not. Knows no message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from server.templates.bounded import BoundedEnvironment
from server.templates.budget import Budget
from server.templates.errors import TemplateError

# What a template may die of when a conversation is not what it expects.
FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True)
class Compiled:
    """A template that is ready to run. bos, eos: None where its tokenizer's settings name none."""

    template: jinja2.Template
    environment: BoundedEnvironment | None = None  # of a template whose work is bounded
    bos: str | None = None
    eos: str | None = None

    def render(self, model: str, context: Mapping[str, Any]) -> str:
        """Return the rendered text. `model` is for the message.

        Raises TemplateError for what no template may do, Complaint, and any of FAILURES.
        """
        try:
            if self.environment is None:
                return self.template.render(context)
            with self.environment.spending(Budget(context)):
                return self.template.render(context)
        except SecurityError as error:
            raise self._forbidden(model, str(error), error) from error
        except jinja2.TemplateNotFound as error:
            names = error.templates if isinstance(error, jinja2.TemplatesNotFound) else [error.name]
            what = f"it includes {' or '.join(map(repr, names))}, and a template is one file alone"
            raise self._forbidden(model, what, error) from error

    def place(self, error: BaseException) -> str:
        """Return the template's file, with the line at which it failed where that is known."""
        line = None
        failure: BaseException | None = error
        while failure is not None and line is None:
            for frame, number in walk_tb(failure.__traceback__):
                if frame.f_code.co_filename == self.template.filename:
                    line = number
            failure = failure.__cause__
        return f"{self.template.filename}" + ("" if line is None else f", line {line}")

    def _forbidden(self, model: str, what: str, error: BaseException) -> TemplateError:
        return TemplateError(
            f"The chat template of {model} does what no template may: {what.rstrip('.')} "
            f"({self.place(error)}). "
            "Name a built-in template or a .jinja file of your own in its entry."
        )
