"""What the record beside a model says of its bytes. Nothing is hashed here: that takes minutes."""

from __future__ import annotations

from pathlib import Path

from server.doctor.facts import HashState
from server.registry import Entry
from server.store.soundness import expected_hashes, known_damage, read_checked, soundness


def hash_state(entry: Entry, models_dir: Path) -> HashState:
    """Return what is known; a record that is not understood counts as none."""
    if (damage := known_damage(entry, models_dir)) is not None:
        return HashState(known=True, damaged=damage)
    known = any(origin != "seen" for _, origin in expected_hashes(entry, models_dir).values())
    if not soundness(entry, models_dir):
        return HashState(known)
    days = [outcome.when[:10] for outcome in read_checked(entry, models_dir).values() if outcome.when]
    return HashState(known, checked=min(days, default="at an unknown time"))
