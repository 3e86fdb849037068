"""All known models by name. Looks at the disk only to say in an error what is installed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from server.errors import ModelNotFound
from server.registry.entry import Entry
from server.registry.installing import how_to_install
from server.registry.placed import Placed


class Registry:
    """The entries of models.yaml. Without models_dir nothing counts as installed.

    places: where the entries stand, by id, as far as they were read from files. Only `renew` changes it, as a
    whole; whoever asked before keeps the entries it got, which never change.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        models_dir: Path | None = None,
        places: Mapping[str, Placed] | None = None,
    ) -> None:
        self.entries: Mapping[str, Entry] = MappingProxyType(dict(entries))
        self.models_dir = models_dir
        self._places = dict(places or {})
        self._by_name = {name: entry for entry in entries.values() for name in entry.names}

    def resolve(self, name: str) -> Entry:
        """Return the entry of an id or alias. Raises ModelNotFound: near matches, and what is installed."""
        entry = self._by_name.get(name)
        if entry is None:
            raise ModelNotFound(self._unknown(name), param="model")
        return entry

    def renew(self, other: Registry) -> tuple[str, ...]:
        """Take over the entries of another registry; return the ids of those that are new, changed or gone.

        What did not change stays the same object, so that `is` tells an entry from an outdated one.
        """
        before = self.entries
        entries = {
            name: before[name] if before.get(name) == entry else entry
            for name, entry in other.entries.items()
        }
        self.entries = MappingProxyType(entries)
        self._places = other._places
        self._by_name = {name: entry for entry in entries.values() for name in entry.names}
        every = dict.fromkeys([*before, *entries])
        return tuple(name for name in every if before.get(name) is not entries.get(name))

    def host(self, entry: Entry) -> Entry:
        """Return the entry whose worker runs a model: an adapter's base, else the model itself.

        Raises ModelNotFound for an outdated adapter whose base has gone.
        """
        if entry.adapter is None:
            return entry
        base = self.entries.get(entry.adapter.base)
        if base is None:
            raise ModelNotFound(self._unknown(entry.adapter.base), param="model")
        return base

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

    def only(self) -> Entry | None:
        """Return the installed entry where there is but one, not counting those on the folder of another."""
        there = self.installed()
        models = [entry for entry in there if entry.shares_with not in {other.id for other in there}]
        return models[0] if len(models) == 1 else None

    def located(self, entry: Entry, key: str, message: str) -> str:
        """Return a message with file and line of the key it is about, for an entry of the user's own file.

        key: dotted, for one inside a block.
        """
        place = self._places.get(entry.id)
        if place is None or place.packaged:
            return message
        return str(place.problem(tuple(key.split(".")), message))

    def missing(self) -> list[str]:
        """Say of each entry of the user's own file that has no files what is not there, and where it stands.

        An adapter needs its base's as well.

        A packaged entry is an offer; one that a person wrote is meant to work.
        """
        if self.models_dir is None:
            return []
        lines = []
        for entry in (place.entry for place in self._places.values() if not place.packaged):
            host = self.host(entry)
            if not entry.installed(self.models_dir):
                what = f"nothing usable is at {entry.path(self.models_dir)}"
                message = f"{what}. {how_to_install(entry, self.models_dir)}"
                lines.append(self.located(entry, _key_of_files(entry), message))
            if host is not entry and not host.installed(self.models_dir):
                what = f"of {host.id} nothing usable is at {host.path(self.models_dir)}"
                message = f"{what}. {how_to_install(host, self.models_dir)}"
                lines.append(self.located(entry, "rkllm.lora.base", message))
        return lines

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


def _key_of_files(entry: Entry) -> str:
    """Return the dotted key that says where the entry's own files are."""
    if entry.adapter is not None:
        return "rkllm.lora.file"
    return "folder" if entry.backend == "hybrid" else "file"
