"""Opening librkllmrt. Whatever can be wrong with a file is a distinct error that says what to do:

LibraryError              and those under it in shared_library
+- SymbolsMissing         it is some other library
+- LayoutMismatch         its structs are not those of 1.3

Knows no versions (see backends.discovery) and no handle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.rkllm import raw
from backends.rkllm.structs import RKLLMParam, raw_byte
from backends.shared_library import DependencyMissing as DependencyMissing
from backends.shared_library import LibraryError as LibraryError
from backends.shared_library import LibraryNotFound as LibraryNotFound
from backends.shared_library import NotLoadable as NotLoadable
from backends.shared_library import WrongArchitecture as WrongArchitecture
from backends.shared_library import open_shared

REQUIRED = (
    "rkllm_createDefaultParam",
    "rkllm_init",
    "rkllm_destroy",
    "rkllm_run",
    "rkllm_abort",
    "rkllm_set_chat_template",
)

_MANY = 1 << 24  # more tokens than any context has; a float's bits read as an int are far beyond it


class SymbolsMissing(LibraryError):
    """It lacks functions of the API, `names`."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        super().__init__(
            path,
            f"{path} is no librkllmrt 1.3: it lacks {', '.join(names)}. Install the vendor's library with "
            "rkserve runtime install FILE|URL, or point RKSERVE_RUNTIME_DIRS to it.",
        )
        self.names = tuple(names)


class LayoutMismatch(LibraryError):
    """Its default parameters make no sense in our layout. `fields` names those that do not."""

    def __init__(self, path: Path, fields: Sequence[str]) -> None:
        super().__init__(
            path,
            f"{path} does not use the data layout of librkllmrt 1.3: its default parameters read as "
            f"{', '.join(fields)}. It is not used, since it would corrupt memory. Install librkllmrt 1.3.1: "
            "rkserve runtime install FILE|URL.",
        )
        self.fields = tuple(fields)


class Library:
    """An open library whose functions have types. It stays open as long as the process."""

    def __init__(self, path: Path, functions: Any) -> None:
        self.path = path
        self.functions = functions
        self.missing = frozenset(raw.missing(functions, raw.PROTOTYPES))

    def default_param(self) -> RKLLMParam:
        """Return the library's own defaults. Raises LayoutMismatch."""
        param: RKLLMParam = self.functions.rkllm_createDefaultParam().param
        if fields := implausible(param):
            raise LayoutMismatch(self.path, fields)
        return param


def open_library(path: Path) -> Library:
    """Open a librkllmrt and check that it can be one of 1.3. Raises LibraryError."""
    functions = open_shared(path)
    if names := raw.missing(functions, REQUIRED):
        raise SymbolsMissing(path, names)
    raw.bind(functions)
    library = Library(path, functions)
    library.default_param()
    return library


def implausible(param: RKLLMParam) -> list[str]:
    """Return what cannot be a default of these parameters, as "field=value"; none when all can be."""
    extend = param.extend_param
    plausible = {
        "max_context_len": 0 <= param.max_context_len <= _MANY,
        "max_new_tokens": -1 <= param.max_new_tokens <= _MANY,
        "top_k": -1 <= param.top_k <= _MANY,
        "n_keep": -1 <= param.n_keep <= _MANY,
        "top_p": _within(param.top_p, 0, 1),
        "temperature": _within(param.temperature, 0, 10),
        "repeat_penalty": _within(param.repeat_penalty, 0, 10),
        "frequency_penalty": _within(param.frequency_penalty, -10, 10),
        "presence_penalty": _within(param.presence_penalty, -10, 10),
        "mirostat": 0 <= param.mirostat <= 2,
        "mirostat_tau": _within(param.mirostat_tau, 0, 100),
        "mirostat_eta": _within(param.mirostat_eta, 0, 10),
        **{
            name: raw_byte(param, name) <= 1
            for name in ("skip_special_token", "ignore_eos_token", "is_async")
        },
    }
    plausible_extend = {
        "base_domain_id": 0 <= extend.base_domain_id <= 255,
        "embed_flash": 0 <= extend.embed_flash <= 1,
        "enabled_cpus_num": 0 <= extend.enabled_cpus_num <= 64,
        "n_batch": extend.n_batch <= 100,
        "use_cross_attn": 0 <= extend.use_cross_attn <= 1,
    }
    wrong = [f"{name}={getattr(param, name)}" for name, fits in plausible.items() if not fits]
    return wrong + [f"{name}={getattr(extend, name)}" for name, fits in plausible_extend.items() if not fits]


def _within(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high
