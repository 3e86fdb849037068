"""All known models by name. Looks at the disk only to say in an error what is installed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from server.errors import ModelNotFound
from server.registry.entry import Entry


class Registry:
    """The entries of models.yaml. Immutable. Without models_dir nothing counts as installed."""

    def __init__(self, entries: Mapping[str, Entry], models_dir: Path | None = None) -> None:
        self.entries: Mapping[str, Entry] = MappingProxyType(dict(entries))
        self.models_dir = models_dir
        self._by_name = {name: entry for entry in entries.values() for name in entry.names}

    def resolve(self, name: str) -> Entry:
        """Return the entry of an id or alias. Raises ModelNotFound: near matches, and what is installed."""
        entry = self._by_name.get(name)
        if entry is None:
            raise ModelNotFound(self._unknown(name), param="model")
        return entry

    def host(self, entry: Entry) -> Entry:
        """Return the entry whose worker runs a model: an adapter's base, else the model itself."""
        return entry if entry.adapter is None else self.entries[entry.adapter.base]

    def installed(self) -> list[Entry]:
        """Return the entries whose files are there, and those of their bases, in the order of models.yaml."""
        models_dir = self.models_dir
        if models_dir is None:
            return []
        return [
            entry
            for entry in self.entries.values()
            if entry.installed(models_dir) and self.host(entry).installed(models_dir)
        ]

    def _unknown(self, name: str) -> str:
        wanted = name.lower()
        known = {spelt.lower(): entry.id for spelt, entry in self._by_name.items()}
        near = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.6)
        near = near or [one for one in known if wanted and (one.startswith(wanted) or wanted.startswith(one))]
        near = near or difflib.get_close_matches(wanted, list(known), n=1, cutoff=0.5)
        ids = dict.fromkeys(known[one] for one in near[:3])
        hint = f" Did you mean {' or '.join(ids)}?" if ids else ""
        there = ", ".join(entry.id for entry in self.installed()) or "none"
        return f'There is no model "{name[:200]}".{hint} Installed: {there}.'
