"""What a template that came with a model finds: Hugging Face's environment, and nothing beyond it.

The expected texts of FEATURES are those of transformers 5.24 for the same templates and values.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.templates import TemplateError
from tests.server.examples import example_entry
from tests.server.templates.support import joined, spans_of

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " S \n"},
    {"role": "user", "content": 'a<b & "c" é 你 😀'},
    {
        "role": "assistant",
        "content": "A1",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": '{"x": "<é>", "n": 1.5, "t": true, "l": [1, "a b"]}'},
            }
        ],
    },
    {"role": "tool", "name": "f", "tool_call_id": "c1", "content": "R"},
    {"role": "user", "content": "U2"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": 'It\'s <b>bold</b> & "é"',
            "parameters": {
                "properties": {"zz top": {"type": "string"}, "aa": {"type": ["integer"], "enum": [1, 2]}}
            },
        },
    }
]
F_JSON = (
    '{"type": "function", "function": {"name": "f", "description": "It\'s <b>bold</b> & \\"é\\"", '
    '"parameters": {"properties": {"zz top": {"type": "string"}, '
    '"aa": {"type": ["integer"], "enum": [1, 2]}}}}}'
)

FEATURES = {
    "a block takes its line": (
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n    [{{ m.content }}]\n  {% endif %}\n"
        "{% endfor %}\nend\n",
        '    [a<b & "c" é 你 😀]\n    [U2]\nend',
    ),
    "minus takes white space": (
        "a  {{- messages[0]['content'] -}}  b\n  {%- set x = 1 %}\n  {{ x }}\n",
        "a S \nb  1",
    ),
    "plus keeps it": (
        "{{ messages[4].content }}\n   {% if true %}\n   t\n   {%+ endif %}\n",
        "U2\n   t\n   ",
    ),
    "comments": ("{# c #}\n  {# d #}x\n{#- e -#}\n y", "xy"),
    "one line end at the end goes": ("{{ messages[4].content }}\n\n", "U2\n"),
    "JSON of tools": ("{{ tools | tojson }}", f"[{F_JSON}]"),
    "JSON, indented": (
        "{{ tools[0].function.parameters.properties.aa | tojson(indent=1) }}",
        '{\n "type": [\n  "integer"\n ],\n "enum": [\n  1,\n  2\n ]\n}',
    ),
    "JSON, sorted and dense": (
        "{{ tools[0].function.parameters.properties | tojson(sort_keys=True, separators=(',', ':')) }}",
        '{"aa":{"enum":[1,2],"type":["integer"]},"zz top":{"type":"string"}}',
    ),
    "JSON in ASCII": (
        "{{ tools[0].function.description | tojson(ensure_ascii=True) }}",
        '"It\'s <b>bold</b> & \\"\\u00e9\\""',
    ),
    "JSON of mixed text": ("{{ (messages[1].content ~ '<x>') | tojson }}", '"a<b & \\"c\\" é 你 😀<x>"'),
    "JSON of arguments": (
        "{{ messages[2].tool_calls[0].function.arguments | tojson }}",
        '{"x": "<é>", "n": 1.5, "t": true, "l": [1, "a b"]}',
    ),
    "JSON of what a template makes": (
        "{{ {'a': messages[4].content, 'b': [1, none, true]} | tojson }}",
        '{"a": "U2", "b": [1, null, true]}',
    ),
    "continue and break": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }};{% endfor %}",
        "user;assistant;",
    ),
    "namespaces": (
        "{% set ns = namespace(n=0, last=none) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.last = m %}{% endfor %}{{ ns.n }}{{ ns.last.content }}",
        "5U2",
    ),
    "generation is a scope of its own": (
        "{% set c = 'out' %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{% set c = m.content %}{{ c }}<e>\n{% endgeneration %}{% else %}{{ c }},{% endif %}{% endfor %}",
        "out,out,A1<e>\nout,out,",
    ),
    "generation with minus": (
        "x {%- generation -%} {{ messages[2].content }} {%- endgeneration -%} y",
        "xA1y",
    ),
    "backwards": ("{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[:1] }}{% endfor %}", "0u1t2a3u4s"),
    "methods of strings": (
        "{{ messages[0].content.strip() }}|{{ messages[0].content | trim }}|"
        "{{ messages[0].content.rstrip('\\n').split('\\n')[0] }}|{{ 'a</think>b'.split('</think>')[-1] }}",
        "S|S| S |b",
    ),
    "items": (
        "{% for k, v in messages[2].tool_calls[0].function.arguments | items %}"
        "{{ k }}={{ v if v is string else v | tojson }};{% endfor %}"
        "{% for k, v in tools[0].function.parameters.properties | dictsort %}{{ k }};{% endfor %}",
        'x=<é>;n=1.5;t=true;l=[1, "a b"];aa;zz top;',
    ),
    "what is not there": (
        "{{ nothing }}{{ messages[0].nothing }}|{{ nothing is defined }}|{{ documents is none }}|"
        "{{ enable_thinking is defined }}|{{ bos_token }}|{{ 'x' if not add_generation_prompt }}",
        "|False|True|False|<s>|",
    ),
    "macros": (
        "{% macro turn(role, text='-') %}<{{ role }}>{{ text }}{% endmacro %}"
        "{% for m in messages[3:] %}{{ turn(m.role, text=m.content) }}{{ turn(m.role) }}{% endfor %}",
        "<tool>R<tool>-<user>U2<user>-",
    ),
    "set blocks": (
        "{% set t %}\n  [{{ messages[1].content }}]\n{% endset %}{{ t | trim }}{{ t is string }}",
        '[a<b & "c" é 你 😀]True',
    ),
    "tests": (
        "{{ messages is iterable }}{{ tools[0] is mapping }}{{ messages[0].content is string }}"
        "{{ messages[2].tool_calls is sequence }}{{ 1.5 is number }}{{ true is boolean }}",
        "TrueTrueTrueTrueTrueTrue",
    ),
    "dict": (
        "{% set d = dict(a=1, b=messages[4].content) %}{{ d | tojson }}{{ d.b }}",
        '{"a": 1, "b": "U2"}U2',
    ),
    "recursive loops": (
        "{% for n in [[1, [2]], 3] recursive %}{{ loop(n) if n is iterable else n }}{% endfor %}",
        "123",
    ),
    "joining": (
        "{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}|"
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson }}|"
        "{{ (messages | rejectattr('role', 'in', ['user', 'tool']) | list) | length }}",
        'system, user, assistant, tool, user|["a<b & \\"c\\" é 你 😀", "U2"]|2',
    ),
    "replacing white space": (
        "{{ messages[0].content | replace('\\n', '/') }}{{ 'a\\n\\nb'.replace('\\n\\n', '\\n') }}",
        " S /a\nb",
    ),
    "names can be compared": (
        "{{ messages[3].name == 'f' }}{{ messages[3].tool_call_id }}{{ tools[0].type == 'function' }}"
        "{{ tools[0].function.parameters.properties['zz top'] is defined }}"
        "{{ tools[0].function.parameters.properties.aa.type[0] | upper }}",
        "Truec1TrueFalseINTEGER",
    ),
}


def _render(tmp_path: Path, source: str, **keys: Any) -> str:
    file = tmp_path / "own.jinja"
    file.write_text(source, encoding="utf-8")
    entry = example_entry(template=str(file), template_options={"bos": "<s>"}, **keys)
    return joined(spans_of(entry, MESSAGES, TOOLS))


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_of_hugging_faces_templates(feature: str, tmp_path: Path) -> None:
    source, expected = FEATURES[feature]
    assert _render(tmp_path, source) == expected


def test_the_date(tmp_path: Path) -> None:
    before = datetime.now().strftime("%d %b %Y")
    assert _render(tmp_path, "{{ strftime_now('%d %b %Y') }}") in (
        before,
        datetime.now().strftime("%d %b %Y"),
    )


def test_an_exception_of_the_template_reaches_the_client(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"says: No 'a<b & .c. é 你 😀' here") as caught:
        _render(tmp_path, """{{ raise_exception("No '" ~ messages[1].content ~ "' here") }}""")
    assert caught.value.code == "invalid_request"
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content.strip() }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages | tojson(indent=nothing) | nofilter if false else nothing | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include nothing %}",
    ],
)
def test_a_template_that_cannot_take_the_messages(source: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidRequest, TemplateError)) as caught:
        _render(tmp_path, source)
    assert "example" in str(caught.value) or "own.jinja" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ namespace.__globals__.json }}",
        "{{ raise_exception.__globals__.guard }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='user') }}",
        "{{ tools[0].pop('type') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__call__ = 1 %}",
        "{{ ('{0.__class__.__mro__}').format(messages) }}",
        "{{ '{x.__globals__}'.format_map({'x': cycler.__init__}) }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment.loader }}",
        "{% import 'os' as os %}",
        "{% include '/etc/passwd' %}",
        "{% extends 'chatml.jinja' %}",
    ],
)
def test_the_sandbox_holds(source: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError) as caught:
        _render(tmp_path, source)
    assert caught.value.code == "load_failed"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ messages[0].__dict__ }}",
        "{{ messages[0].__class__.__init__ }}",
        "{{ '{0[0].__class__.__init__}'.format(messages) }}",
        "{{ cycler.__init__ }}",
    ],
)
def test_what_the_sandbox_hides_is_empty(source: str, tmp_path: Path) -> None:
    assert _render(tmp_path, source) == ""


def test_the_sandbox_counts_no_further_than_100_000(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="counts further than 100000"):
        _render(tmp_path, "{{ range(1000000) | list }}")


def test_a_template_changes_nothing_it_is_given(tmp_path: Path) -> None:
    before = repr((MESSAGES, TOOLS))
    _render(tmp_path, "{% for m in messages %}{% set m = {} %}{% endfor %}{{ messages | tojson }}")
    assert repr((MESSAGES, TOOLS)) == before


def test_values_nested_too_deeply(tmp_path: Path) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    try:
        with pytest.raises(InvalidRequest, match="RecursionError"):
            spans_of(example_entry(), MESSAGES, [{"type": "function", "function": {"parameters": schema}}])
    finally:
        while schema:  # level by level: all at once would be too deep for the interpreter too
            schema = schema["items"]
