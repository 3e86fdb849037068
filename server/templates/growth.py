"""What is refused before it begins, since one step of it can make much of little. Knows no Jinja.

Each raises OverBudget. A filter's check returns the value that the filter goes on with, a method's the
arguments in place of those given, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from server.templates.budget import LONGEST_INT_BITS, Budget, OverBudget

WIDEST = 100  # indentation, digits after the point
_WIDE_FIELD = re.compile(r"\d{4}|\*|:[^{}]*\{")  # a width of thousands, or one that an argument tells


def allow_power(base: int, exponent: int) -> None:
    """Raise OverBudget for a power that is too long a number."""
    if exponent > 0 and base.bit_length() * exponent > 2 * LONGEST_INT_BITS:
        raise OverBudget("it computes with numbers that are too long")


def allow_format(budget: Budget, form: str, mark: str, values: tuple[Any, ...]) -> None:
    """Raise OverBudget if a text's fields, each begun by `mark`, may become too much with these values."""
    if _WIDE_FIELD.search(form):
        raise OverBudget("it pads a text to a width of thousands")
    budget.allow(len(form) + form.count(mark) * budget.weigh(values))


def _allow_replace(budget: Budget, text: object, old: object, new: object, *_: object, **__: object) -> str:
    text, old, new = str(text), str(old), str(new)
    budget.allow(len(text) + text.count(old) * len(new))
    return text


def _allow_join(budget: Budget, items: Iterable[Any], d: object = "", attribute: object = None) -> list[Any]:
    items = list(items)
    budget.allow(budget.weigh(items) + len(items) * len(str(d)))
    return items


def _allow_indent(budget: Budget, text: object, width: object = 4, *_: object, **__: object) -> str:
    text = str(text)
    if not isinstance(width, int) or width > WIDEST:
        raise OverBudget(f"it indents by something else than up to {WIDEST} blanks")
    budget.allow(len(text) + (text.count("\n") + 1) * width)
    return text


def _allow_round(_: Budget, value: Any, precision: int = 0, *__: object, **___: object) -> Any:
    if abs(precision) > WIDEST:
        raise OverBudget(f"it rounds to more than {WIDEST} digits")
    return value


def _allow_sum(
    budget: Budget, items: Iterable[Any], attribute: object = None, start: object = 0
) -> list[Any]:
    if not isinstance(start, int | float):
        raise OverBudget("it adds up something else than numbers")
    return list(items)


def _allow_tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: object = False,
    indent: object = None,
    separators: object = None,
    *_: object,
    **__: object,
) -> Any:
    wide = len(indent) if isinstance(indent, str) else indent
    if isinstance(wide, int) and wide > WIDEST:
        raise OverBudget(f"it indents by more than {WIDEST}")
    if separators is not None and budget.weigh(separators) > WIDEST:
        raise OverBudget("it separates by long texts")
    return value


def _join_items(budget: Budget, separator: str, items: Iterable[Any]) -> tuple[list[Any]]:
    return (_allow_join(budget, items, separator),)


def _replace_in(budget: Budget, text: str, old: str, new: str, *rest: object, **__: object) -> None:
    _allow_replace(budget, text, old, new)


FILTER_CHECKS: dict[str, Callable[..., Any]] = {
    "replace": _allow_replace,
    "join": _allow_join,
    "indent": _allow_indent,
    "round": _allow_round,
    "sum": _allow_sum,
    "tojson": _allow_tojson,
}
METHOD_CHECKS: dict[str, Callable[..., tuple[Any, ...] | None]] = {
    "join": _join_items,
    "replace": _replace_in,
}
