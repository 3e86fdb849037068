"""Which of the vendor's runtime libraries on this machine a model gets. Looks at files, loads none."""

from __future__ import annotations

from backends.discovery import NoFittingRuntime, RuntimeFinder, RuntimeLibrary
from server.errors import LoadError, RuntimeVersionMismatch
from server.registry import Entry
from server.settings import Settings


class Runtimes:
    """Chooses among the libraries in RKSERVE_RUNTIME_DIRS, which are the system's own places by default.

    A file is read when it is first met, which takes some 10 ms, and again only when it has changed.
    """

    def __init__(self, settings: Settings) -> None:
        self._finder = RuntimeFinder(settings.runtime_dirs, system=())
        self._models_dir = settings.models_dir

    def choose(self, entry: Entry) -> RuntimeLibrary | None:
        """Return the library for a model, None for one that needs none.

        Raises RuntimeVersionMismatch, which lists every file found with its version.
        """
        if entry.backend != "rkllm":
            return None
        try:
            library = self._finder.choose("rkllm", entry.runtime)
        except NoFittingRuntime as error:
            raise RuntimeVersionMismatch(f"{entry.id} cannot be loaded. {error}", "model") from error
        self._check_encoder(entry)
        return library

    def describe(self, entry: Entry) -> tuple[str | None, str | None]:
        """Return name and version of the library for a model, and else why there is none, for a person."""
        try:
            library = self.choose(entry)
        except LoadError as error:
            return None, error.message
        return None if library is None else f"librkllmrt {library.version}", None

    def _check_encoder(self, entry: Entry) -> None:
        """Raise RuntimeVersionMismatch where the image encoder is there and no librknnrt for it."""
        encoder = entry.encoder(self._models_dir)
        if encoder is None or encoder.suffix != ".rknn" or entry.vision is None:
            return
        try:
            self._finder.choose("rknn", entry.vision.runtime)
        except NoFittingRuntime as error:
            raise RuntimeVersionMismatch(
                f"{entry.id} cannot be loaded with its image encoder {encoder}. {error} Without that file it "
                "chats without images.",
                "model",
            ) from error
