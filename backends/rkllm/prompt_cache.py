"""The prompt-cache file of a model: the KV cache of its fixed prompt beginning, computed once for all loads.

Used right after a model has been loaded, and never later: saving and loading one replace what the KV cache
holds. The vendor's library refuses that for some models and may die of it for others, or of a file that is
damaged. So a record beside the file says what is about to be done before it is done: an attempt that did not
come to its end, or was refused, is not made again. One that the server has ended because it was told to stop
is: it leaves a file that says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from backends.base import EngineLost
from backends.rkllm.session import Session
from backends.spec import STOPPED_FILE

RECORD_FILE = "record.json"
FEWEST_TOKENS = 16
MOST_TOKENS = 2048  # computing more could take longer than a load may
ROOM_BYTES = 1 << 30

_State = Literal["saving", "saved", "loading", "refused"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the cache of one key. sha256: of the file. why: it is not to be tried again."""

    key: str
    state: _State
    sha256: str | None = None
    why: str | None = None


def cache_key(runtime: str, model: Path, context_length: int, prompt: Sequence[int] | str) -> str:
    """Return what a cache file depends on, as a name. Raises OSError where the model is not to be seen."""
    stat = model.stat()
    parts = [runtime, model.name, stat.st_size, stat.st_mtime_ns, context_length, prompt]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


@dataclass(frozen=True)
class PromptCache:
    """One model's directory of prompt caches. It holds one cache at most: the key's."""

    directory: Path
    key: str

    @property
    def file(self) -> Path:
        """The cache itself."""
        return self.directory / f"{self.key}.cache"

    def prepare(self, session: Session, prompt: Sequence[int] | str) -> str | None:
        """Bring the prompt into the KV cache, from the file or by computing and saving it.

        Returns a warning where the model goes on without. Raises EngineLost, which is remembered.
        """
        try:
            return self._prepare(session, prompt)
        except OSError as error:
            return f"prompt_cache has no effect: {self.directory} cannot be used ({error.strerror})."

    def _prepare(self, session: Session, prompt: Sequence[int] | str) -> str | None:
        self.directory.mkdir(parents=True, exist_ok=True)
        record = self._read()
        stopped = self.directory / STOPPED_FILE
        if stopped.exists():
            record = None if record is None else _undone(record)
            stopped.unlink()
        if record is not None and record.key == self.key:
            if record.state in ("saving", "loading"):
                what = "saving" if record.state == "saving" else "loading"
                record = self._refuse(f"{what} it ended the runtime, or was cut short, on an earlier load")
            if record.state == "refused":
                return self._warning(record)
            if self._whole(record):
                return self._load(session, record)
        return self._save(session, prompt)

    def _load(self, session: Session, record: Record) -> str | None:
        self._write(msgspec.structs.replace(record, state="loading"))
        if not session.load_prompt_cache(self.file):
            return self._warning(self._refuse("the runtime would not load what it had saved"))
        self._write(record)
        return None

    def _save(self, session: Session, prompt: Sequence[int] | str) -> str | None:
        for old in self.directory.glob("*.cache*"):
            old.unlink(missing_ok=True)
        if shutil.disk_usage(self.directory).free < ROOM_BYTES:
            return f"prompt_cache: less than {ROOM_BYTES >> 30} GB is free, so nothing was saved."
        partial = self.file.with_suffix(".cache.partial")
        self._write(Record(key=self.key, state="saving"))
        try:
            saved = session.save_prompt_cache(prompt, partial)
        except EngineLost as error:
            self._refuse(f"saving it failed ({error.message})")
            raise
        if not saved or not partial.is_file() or partial.stat().st_size == 0:
            partial.unlink(missing_ok=True)
            return self._warning(self._refuse("the runtime does not save it for this model"))
        digest = _sha256(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, self.file)
        self._write(Record(key=self.key, state="saved", sha256=digest))
        return None

    def _whole(self, record: Record) -> bool:
        try:
            return _sha256(self.file) == record.sha256
        except OSError:
            return False

    def _warning(self, record: Record) -> str:
        return (
            f"prompt_cache has no effect: {record.why}. It is not tried again with this model, runtime and "
            f"prompt; remove {self.directory / RECORD_FILE} to try it all the same."
        )

    def _refuse(self, why: str) -> Record:
        record = Record(key=self.key, state="refused", why=why)
        self._write(record)
        return record

    def _read(self) -> Record | None:
        try:
            return msgspec.json.decode((self.directory / RECORD_FILE).read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _write(self, record: Record) -> None:
        """Replace the record, so that it holds even if the machine dies in the next moment."""
        path = self.directory / RECORD_FILE
        new = path.with_suffix(".json.new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)


def _undone(record: Record) -> Record | None:
    """Return what was known before the attempt that a record tells of."""
    match record.state:
        case "saving":
            return None
        case "loading":
            return msgspec.structs.replace(record, state="saved")
    return record


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
