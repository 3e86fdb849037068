"""Names, help and labels by Prometheus' conventions, the table in docs, and the dashboard: all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.metrics.conftest import Life

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "docs" / "grafana" / "rkserve.json"
# What Prometheus adds to every sample, and what a histogram's buckets have.
ADDED = {"instance", "job"}
_NAME = re.compile(r"\b(?:rkserve|process)_\w+")
_SELECTOR = re.compile(r"((?:rkserve|process)_\w+)\{([^}]*)\}")
_SERIES = re.compile(r"_(bucket|sum|count)$")
UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_hertz", "_total", "_info", "_tokens_per_second")
COUNTS = {  # gauges whose unit is the thing itself
    "rkserve_requests_in_progress",
    "rkserve_requests_running",
    "rkserve_queue_length",
    "rkserve_queue_limit",
    "rkserve_model_loaded",
}


def described() -> dict[str, tuple[str, str]]:
    """Return kind and labels of each name in the page's tables."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `rkserve_") or line.startswith("| `process_"):
            name, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            assert meaning, name
            assert name.strip("`") not in found, name
            found[name.strip("`")] = kind, labels
    return found


def test_the_page_has_every_name_with_its_kind_and_labels_and_no_other(life: Life) -> None:
    shown = life.exposed
    table = described()
    assert set(table) == set(shown.types)
    for name, (kind, labels) in table.items():
        assert kind == shown.types[name], name
        there = shown.labels[f"{name}_bucket" if kind == "histogram" else name]
        assert set(re.findall(r"`(\w+)`", labels)) == there - {"le"}, name


def test_names_follow_the_conventions(life: Life) -> None:
    shown = life.exposed
    for name, kind in shown.types.items():
        if not name.startswith("rkserve_"):
            continue
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and "__" not in name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(bucket|sum|count|created|gauge|counter|histogram)$", name), name
        assert name.endswith(UNITS) or name in COUNTS, name
        assert kind in ("counter", "gauge", "histogram"), name
        assert len(shown.help[name]) > 10 and shown.help[name].endswith("."), name
    for name, labels in shown.labels.items():
        for label in labels:
            assert re.fullmatch(r"[a-z][a-z_]*", label), (name, label)
            assert label not in ADDED and (label == "le") <= name.endswith("_bucket"), (name, label)


def targets() -> Iterator[tuple[str, str, str]]:
    """Yield title, expression and legend of everything the dashboard draws."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def labels_of(life: Life) -> dict[str, set[str]]:
    return {name: labels | ADDED for name, labels in life.exposed.labels.items()}


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()))
def test_a_panel_draws_what_there_is(title: str, expression: str, legend: str, life: Life) -> None:
    known = labels_of(life)
    names = set(_NAME.findall(expression))
    assert names, title
    assert names <= set(known), f"{title}: {names - set(known)}"
    for name, matchers in _SELECTOR.findall(expression):
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert used <= known[name], f"{title}: {name} has no {used - known[name]}"
    everything = set.intersection(*(known[name] for name in names))
    grouped = [set(re.split(r",\s*", by)) for by in re.findall(r"\bby \(([^)]*)\)", expression)]
    for by in grouped:
        assert by <= everything, f"{title}: {by - everything}"
    if "histogram_quantile" in expression:
        assert all("le" in by for by in grouped) and grouped
    left = grouped[0] - {"le"} if grouped else (set() if "sum(" in expression else everything)
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left, title
    assert ("_bucket" in expression) == ("histogram_quantile" in expression)
    counters = {name for name in names if life.exposed.types.get(name) == "counter"}
    assert all(re.search(rf"(rate|increase)\({name}\{{", expression) for name in counters), title


def test_every_name_is_drawn(life: Life) -> None:
    drawn = {_SERIES.sub("", name) for _, expression, _ in targets() for name in _NAME.findall(expression)}
    ours = {name for name in life.exposed.types if name.startswith("rkserve_")}
    assert drawn >= ours, ours - drawn


def test_the_dashboard_is_whole() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) - {"__rate_interval"}
    assert used <= set(variables)
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_variables_of_the_dashboard_have_values(life: Life) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    known = labels_of(life)
    assert queries
    for query in queries:
        name, label = re.findall(r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)", query)[0]
        assert label in known[name]
