"""What a server's /metrics says, read by the parser of Prometheus' own client library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Exposed:
    """Every sample. types: by the family's name as it is written. help: likewise."""

    samples: dict[tuple[str, Labels], float]
    types: dict[str, str]
    help: dict[str, str]
    labels: dict[str, set[str]] = field(default_factory=dict)

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sample of exactly these labels."""
        return self.samples[name, frozenset(labels.items())]

    def values(self, name: str, /, **labels: str) -> dict[Labels, float]:
        """Return the samples whose labels contain these, by the rest of their labels."""
        wanted = frozenset(labels.items())
        return {
            found - wanted: value
            for (one, found), value in self.samples.items()
            if one == name and wanted <= found
        }


def parse(text: str) -> Exposed:
    """Read an exposition. Raises ValueError where the format is broken, AssertionError for twins."""
    samples: dict[tuple[str, Labels], float] = {}
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"{key} stands there twice"
            samples[key] = sample.value
            labels.setdefault(sample.name, set()).update(sample.labels)
    comments = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# ")]
    types = _once((name, rest) for _, what, name, rest in comments if what == "TYPE")
    help_ = _once((name, rest) for _, what, name, rest in comments if what == "HELP")
    return Exposed(samples, types, help_, labels)


def _once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in pairs:
        assert name not in found, f"{name} is described twice"
        found[name] = text
    return found
