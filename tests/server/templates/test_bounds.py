"""Templates that want more than a prompt takes: each is refused in time, and with little memory.

Each attack runs in a process of its own with little memory, so that a hole fails a test and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from server.templates import Templates, budget
from tests.server.examples import example_entry
from tests.server.templates.support import user

MEMORY_BYTES = 1500 * 2**20
ENDLESS_S = 0.3  # of the processor, in place of the 3 s that a template has
PATIENCE_S = 300  # of a busy machine, for all of them

DOUBLE = "{% set ns = namespace(x=SEED) %}{% for i in range(60) %}{% set ns.x = NEXT %}{% endfor %}"
ENDLESS = {
    "a long loop": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that do something": "{% set ns = namespace(n=0) %}{% for i in range(99999) %}"
    "{% for j in range(99999) %}{% set ns.n = ns.n + 1 %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a recursive loop, deep": "{% for n in [40] recursive %}{% if n %}{{ loop([n - 1]) }}{{ loop([n - 1]) }}"
    "{% endif %}{% endfor %}",
    "a filter in a loop": "{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}",
    "lazy filters": "{% for i in range(999) %}{{ range(9999)|map('string')|select|list|length }}{% endfor %}",
    "blocks": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
}
LARGE = {
    "a product": "{{ 'a' * 10**9 }}",
    "a product, the other way round": "{{ 10**9 * 'a' }}",
    "a product of lists": "{{ [1] * 10**9 }}",
    "a product of products": "{% set a = 'a' * 10**5 %}{{ a|replace('a', a) }}",
    "replace": "{% set a = 'a' * 10**5 %}{{ a.replace('a', a) }}",
    "replace between": "{% set a = 'a' * 10**6 %}{{ a.replace('', a) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "methods that pad": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "translate": "{{ ('a' * 10**6).translate({97: 'a' * 10**6}) }}",
    "join": "{{ range(99999)|join('a' * 10**6) }}",
    "join, the method": "{{ ('a' * 10**6).join(['a'] * 10**4) }}",
    "joiner": "{% set j = joiner('a' * 10**6) %}{% for i in range(9999) %}{{ j() }}{% endfor %}",
    "cycler": "{% set c = cycler('a' * 10**6) %}{% for i in range(9999) %}{{ c.next() }}{% endfor %}",
    "batch": "{{ [1]|batch(10**9, 'a')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "indent": "{{ 'a\\n'|indent(10**9, true) }}",
    "indent of many lines": "{{ ('a\\n' * 10**5)|indent(99999) }}",
    "indent by a text": "{{ ('a\\n' * 10**5)|indent('a' * 10**5) }}",
    "tojson": "{{ [[1]]|tojson(indent=10**9) }}",
    "tojson separated": "{{ ([1] * 10**4)|tojson(separators=('a' * 10**6, 'b')) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "percent, many": "{{ ('%s' * 10**4) % ([('a' * 10**6)] * 10**4)|list }}",
    "format": "{{ '%999999999d'|format(1) }}",
    "str.format": "{{ '{:999999999}'.format(1) }}",
    "str.format nested": "{{ '{:{}}'.format(1, 10**9) }}",
    "str.format, many": "{{ ('{0}' * 10**5).format('a' * 10**6) }}",
    "format_map": "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "lipsum": "{{ lipsum(10**9) }}",
    "output": "{% set a = 'a' * 10**6 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "a captured output": "{% set b %}{% for i in range(99999) %}{{ 'a' * 10**5 }}{% endfor %}{% endset %}",
    "a macro's output": "{% macro m() %}{% for i in range(9999) %}{{ 'a' * 10**5 }}{% endfor %}{% endmacro %}"
    "{{ m()|length }}",
    "doubling by ~": DOUBLE.replace("SEED", "'a'").replace("NEXT", "ns.x ~ ns.x"),
    "doubling by +": DOUBLE.replace("SEED", "'a'").replace("NEXT", "ns.x + ns.x"),
    "doubling by %": DOUBLE.replace("SEED", "'a'").replace("NEXT", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format": DOUBLE.replace("SEED", "'a'").replace("NEXT", "'{0}{0}'.format(ns.x)"),
    "doubling by join": DOUBLE.replace("SEED", "'a'").replace("NEXT", "[ns.x, ns.x]|join"),
    "doubling lists": DOUBLE.replace("SEED", "[1]").replace("NEXT", "ns.x + ns.x"),
    "a tree": DOUBLE.replace("SEED", "1").replace("NEXT", "[ns.x, ns.x]") + "{{ ns.x }}",
    "a tree of tuples": DOUBLE.replace("SEED", "1").replace("NEXT", "(ns.x, ns.x)") + "{{ ns.x|string }}",
    "a tree of dicts": DOUBLE.replace("SEED", "1").replace("NEXT", "{1: ns.x, 2: ns.x}")
    + "{{ ns.x|tojson }}",
    "a tree by dict()": DOUBLE.replace("SEED", "1").replace("NEXT", "dict(a=ns.x, b=ns.x)") + "{{ ns.x }}",
    "a tree of views": DOUBLE.replace("SEED", "1").replace("NEXT", "{1: ns.x, 2: ns.x}.items()")
    + "{{ ns.x }}",
    "a tree of arguments": "{% macro m(n) %}{% if n %}{{ m(n - 1, a=kwargs, b=kwargs) }}{% else %}"
    "{{ kwargs }}{% endif %}{% endmacro %}{{ m(60) }}",
    "trees compared": DOUBLE.replace("SEED", "1").replace("NEXT", "[ns.x, ns.x]")
    + DOUBLE.replace("SEED", "1").replace("NEXT", "[ns.x, ns.x]").replace("ns", "ms")
    + "{{ ns.x == ms.x }}",
    "slices kept": "{% macro m(x) %}{{ m(x[1:]) }}{% endmacro %}{{ m('a' * 10**6) }}",
    "texts kept": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + ['a' * 10**5] %}{% endfor %}",
    "a list of characters": "{{ ('a' * 10**6)|list|length }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "a power in steps": DOUBLE.replace("SEED", "10").replace("NEXT", "ns.x * ns.x"),
    "a shift by rounding": "{{ 1|round(-10**9) }}",
    "rounding up": "{{ 1|round(10**9, 'ceil') }}",
    "sum of lists": "{{ ([[1]] * 10**5)|sum(start=[])|length }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "an encoding": "{{ ('a' * 10**6).encode('idna') }}",
    "a time": "{{ strftime_now('%999999999d') }}",
}
BROKEN = {
    "too many blocks": "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a sum of many": "{{ " + "1+" * 5000 + "1 }}",
    "a number of many digits": "{{ " + "9" * 5000 + " }}",
    "no filter": "{{ 'a'|no_such_filter }}",
}


ATTACKS = ENDLESS | LARGE | BROKEN


def attack(name: str, directory: Path) -> str:
    """Render a template with little memory. Returns the outcome; for a process that ends afterwards."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    budget.SECONDS = ENDLESS_S
    template = directory / "attack.jinja"
    template.write_text(ATTACKS[name])
    try:
        Templates(directory).render(example_entry(template=str(template)), [user("Hi")])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "rendered"


def attack_all(directory: Path) -> dict[str, str]:
    """Try all attacks, each in a fork. Returns their outcomes."""
    outcomes = {}
    for name in ATTACKS:
        receiver, sender = os.pipe()
        if (child := os.fork()) == 0:
            os.write(sender, attack(name, directory).encode()[:4000])
            os._exit(0)
        os.close(sender)
        with open(receiver, encoding="utf-8") as outcome:
            outcomes[name] = outcome.read()
        outcomes[name] += f" ({os.waitpid(child, 0)[1]})"
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("attacks")
    done = subprocess.run(
        [sys.executable, "-m", "tests.server.templates.test_bounds", directory],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(name: str, outcomes: dict[str, str]) -> None:
    # Not MemoryError, not a process that was killed.
    assert re.fullmatch(r"(TemplateError|InvalidRequest): .* \(0\)", outcomes[name], re.DOTALL)


@pytest.mark.parametrize(
    "name", ["loops in loops", "loops that do something", "macros", "a recursive loop, deep"]
)
def test_what_takes_too_long_is_the_template_s_fault(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name].startswith("TemplateError: The chat template of example does what no template may")


if __name__ == "__main__":
    print(json.dumps(attack_all(Path(sys.argv[1]))))
