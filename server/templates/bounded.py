"""A sandbox in which the work of a template is bounded, since the template of a model may be anybody's.

Everything that makes a value out of others passes by here and is charged to a budget: operators, calls,
filters, literals, output, each turn of a loop. What can make much of little in one go (multiplying, padding,
replacing, powers) is refused before it begins. Methods of texts, filters and globals are those of a list, so
that nobody has to know what all the others can do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined, str_join
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import missing

from server.templates.budget import Budget, OverBudget, allow_int
from server.templates.growth import FILTER_CHECKS, METHOD_CHECKS, allow_format, allow_power

_STR_METHODS = """
capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower
isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind
rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
STR_METHODS = frozenset(_STR_METHODS.split())
_FILTERS = """
abs attr capitalize count d default dictsort e escape first float groupby indent int items join last
length list lower map max min reject rejectattr replace reverse round safe select selectattr sort string
sum title tojson trim unique upper wordcount
"""
FILTERS = frozenset(_FILTERS.split())


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Compile with it and render its templates inside `spending`."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    class code_generator_class(CodeGenerator):
        """Lets literals, concatenations and loops pass by the environment."""

        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
            self.write("environment.concatenated((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def visit_List(self, node: nodes.List, frame: Frame) -> None:
            self._charged(super().visit_List, node, frame)

        def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
            self._charged(super().visit_Dict, node, frame)

        def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
            if node.ctx == "load":
                self._charged(super().visit_Tuple, node, frame)
            else:
                super().visit_Tuple(node, frame)

        def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
            if isinstance(node.arg, nodes.Slice):
                self._charged(super().visit_Getitem, node, frame)
            else:
                super().visit_Getitem(node, frame)

        def visit_For(self, node: nodes.For, frame: Frame) -> None:
            node.iter = nodes.Call(
                nodes.EnvironmentAttribute("turns"), [node.iter], [], None, None, lineno=node.lineno
            )
            super().visit_For(node, frame)

        def _charged(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
            self.write("environment.charged(")
            visit(node, frame)
            self.write(")")

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.charged, **options)
        self._budget: ContextVar[Budget] = ContextVar("budget")
        self.filters = {name: self.filters[name] for name in self.filters if name in FILTERS}
        del self.globals["lipsum"]
        self.globals["range"] = _bounded_range
        # Jinja joins the pieces of macros and blocks with this.
        self.concat = self._joined  # type: ignore[method-assign]

    @contextmanager
    def spending(self, budget: Budget) -> Iterator[Budget]:
        """Charge what happens inside the block to a budget. Turns OverBudget into SecurityError."""
        token = self._budget.set(budget)
        try:
            yield budget
        except OverBudget as error:
            raise SecurityError(str(error)) from error
        finally:
            self._budget.reset(token)

    def bound_filters(self) -> None:
        """Put every filter under the budget. Call when all of them are there."""
        for name, filter_ in self.filters.items():
            self.filters[name] = self._bounded(filter_, FILTER_CHECKS.get(name))

    def charged(self, value: Any) -> Any:
        """Charge a value and return it."""
        self._budget.get().charge(value)
        return value

    def concatenated(self, parts: tuple[Any, ...]) -> str:
        """Return what the operator ~ makes."""
        self._budget.get().charge(*parts)
        return str(self.charged(str_join(parts)))

    def turns(self, iterable: Iterable[Any]) -> Generator[Any]:
        """Yield what a loop goes over, each turn a step."""
        budget = self._budget.get()
        for item in iterable:
            budget.charge()
            yield item

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget.get()
        allow_int(left, right)
        match operator, left, right:
            case "*", str() | list() | tuple(), int():
                budget.allow(_share(budget, left) * right)
            case "*", int(), str() | list() | tuple():
                budget.allow(left * _share(budget, right))
            case "**", int(), int():
                allow_power(left, right)
            case "%", str(), _:
                allow_format(budget, left, "%", (right,))
        return self.charged(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self, method = __self, __obj
        budget = self._budget.get()
        budget.allow(budget.weigh((*args, *kwargs.values())))  # a macro finds them in a tuple and a dict
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and (check := METHOD_CHECKS.get(method.__name__)) is not None:
            args = check(budget, owner, *args, **kwargs) or args
        if isinstance(method, Undefined) and method._undefined_obj is missing:
            # Not what a message lacks: a name that nothing has.
            raise SecurityError(f"it calls {method._undefined_name!r}, which is no function here")
        with budget.one_deeper():
            result = super().call(__context, method, *args, **kwargs)
        # What `turns` returns is charged turn by turn.
        return result if isinstance(result, Generator) else self.charged(result)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in STR_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None or value.__name__ != "format":
            return None

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            allow_format(self._budget.get(), value.__self__, "{", (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return bounded_format

    def _joined(self, pieces: Iterable[str]) -> str:
        made = list(pieces)
        budget = self._budget.get()
        budget.allow(sum(map(len, made)))
        return str(self.charged("".join(made)))

    def _bounded(self, filter_: Callable[..., Any], check: Callable[..., Any] | None) -> Callable[..., Any]:
        # A mark of Jinja's on the filter says that its first argument is the context or the like.
        first = 1 if hasattr(filter_, "jinja_pass_arg") else 0

        @wraps(filter_)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            budget.allow(budget.weigh(args[first]))
            if check is not None:
                value, *rest = args[first:]
                args = (*args[:first], check(budget, value, *rest, **kwargs), *rest)
            result = filter_(*args, **kwargs)
            return result if isinstance(result, Iterator) else self.charged(result)

        return bounded


def _bounded_range(*args: Any) -> range:
    numbers = range(*args)
    # By its ends: len() of a longer one than a list can be raises.
    if abs(numbers.stop - numbers.start) > MAX_RANGE * abs(numbers.step):
        raise SecurityError(f"it counts further than {MAX_RANGE}")
    return numbers


def _share(budget: Budget, value: object) -> int:
    """Return what a value adds to one that it is repeated in."""
    return len(value) if isinstance(value, str) else budget.weigh(value)
