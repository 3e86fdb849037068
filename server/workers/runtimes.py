"""Which of the vendor's runtime libraries on this machine a model gets. Looks at files, loads none."""

from __future__ import annotations

import os
from pathlib import Path

from backends.discovery import FILE_NAMES, RKNN_ABI, NoFittingRuntime, RuntimeFinder, RuntimeLibrary
from backends.npu_builds import has_npu_builds
from backends.spec import META_FILE
from server.errors import LoadError, RuntimeVersionMismatch
from server.registry import Entry
from server.settings import Settings
from server.workers.npu import must_use_npu, npu_present


class Runtimes:
    """Chooses among the libraries in RKSERVE_RUNTIME_DIRS, which are the system's own places by default.

    A file is read when it is first met, which takes some 10 ms, and again only when it has changed.
    """

    def __init__(self, settings: Settings) -> None:
        self._finder = RuntimeFinder(settings.runtime_dirs, system=())
        self._models_dir = settings.models_dir
        self._npu_present = npu_present(settings.sysroot)
        self._builds: dict[tuple[object, ...], bool] = {}

    def choose(self, entry: Entry) -> RuntimeLibrary | None:
        """Return the library for a model, None for one that needs none.

        A hybrid model with the executor auto gets one where there is an NPU, .rknn files and a fitting
        library, and runs on the CPU else. With rknnlite the vendor's package finds one itself.

        Raises RuntimeVersionMismatch, which lists every file found with its version.
        """
        if entry.backend == "hybrid":
            return self._for_segments(entry)
        try:
            library = self._finder.choose("rkllm", entry.runtime)
        except NoFittingRuntime as error:
            raise RuntimeVersionMismatch(f"{entry.id} cannot be loaded. {error}", "model") from error
        self._check_encoder(entry)
        return library

    def uses_npu(self, entry: Entry) -> bool:
        """Return whether a model's worker takes the NPU, and so waits for its turn on it. Cheap."""
        needed = must_use_npu(entry)
        return self._for_auto(entry) is not None if needed is None else needed

    def describe(self, entry: Entry) -> tuple[str | None, str | None]:
        """Return name and version of the library for a model, and else why there is none, for a person."""
        try:
            library = self.choose(entry)
        except LoadError as error:
            return None, error.message
        if library is None:
            return None, None
        return f"{FILE_NAMES[library.kind].removesuffix('.so')} {library.version}", None

    def _for_segments(self, entry: Entry) -> RuntimeLibrary | None:
        if entry.hybrid.executor == "auto":
            return self._for_auto(entry)
        if entry.hybrid.executor != "rknn":
            return None
        try:
            return self._finder.choose("rknn", entry.runtime, RKNN_ABI)
        except NoFittingRuntime as error:
            raise RuntimeVersionMismatch(f"{entry.id} cannot be loaded. {error}", "model") from error

    def _for_auto(self, entry: Entry) -> RuntimeLibrary | None:
        if not self._npu_present or not self._has_npu_builds(entry):
            return None
        try:
            return self._finder.choose("rknn", entry.runtime, RKNN_ABI)
        except NoFittingRuntime:
            return None

    def _has_npu_builds(self, entry: Entry) -> bool:
        """Return whether the folder has .rknn files; its description is read again when it has changed."""
        meta = entry.path(self._models_dir) / META_FILE
        overlay = entry.hybrid.meta and entry.directory(self._models_dir) / entry.hybrid.meta
        files = [path for path in (meta, overlay) if path]
        try:
            states = [os.stat(path) for path in files]
        except OSError:
            return False
        key = (entry.hybrid.variant, *files, *((state.st_mtime_ns, state.st_size) for state in states))
        if key not in self._builds:
            self._builds[key] = has_npu_builds(meta, entry.hybrid.variant, Path(overlay) if overlay else None)
        return self._builds[key]

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
