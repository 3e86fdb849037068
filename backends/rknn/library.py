"""Opening librknnrt: what it can be asked for, and what it is refused for.

LibraryError              and those under it in shared_library
+- SymbolsMissing         it is some other library, or one without the zero-copy functions
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.discovery import RKNN_ABI
from backends.rknn import raw
from backends.shared_library import LibraryError, open_shared

REQUIRED = (
    "rknn_init",
    "rknn_destroy",
    "rknn_query",
    "rknn_set_core_mask",
    "rknn_run",
    "rknn_create_mem",
    "rknn_destroy_mem",
    "rknn_set_io_mem",
    "rknn_set_input_shapes",
)


class SymbolsMissing(LibraryError):
    """It lacks functions of the API, `names`."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        super().__init__(
            path,
            f"{path} cannot run segments without copies: it lacks {', '.join(names)}. Install librknnrt "
            f"{RKNN_ABI} with rkserve runtime install FILE|URL, or set executor: rknnlite for the entry.",
        )
        self.names = tuple(names)


def open_library(path: Path) -> Any:
    """Open a librknnrt and return its functions, typed. It stays open as long as the process.

    Raises LibraryError.
    """
    functions = open_shared(path)
    if names := raw.missing(functions, REQUIRED):
        raise SymbolsMissing(path, names)
    raw.bind(functions)
    return functions
