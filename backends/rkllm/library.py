"""Opening librkllmrt. Whatever can be wrong with a file is a distinct error that says what to do:

LibraryError
+- LibraryNotFound        no such file, or not readable
+- WrongArchitecture      no ELF file, or one for another machine
+- DependencyMissing      a library it needs is not there; mostly libgomp
+- NotLoadable            the system's loader refuses it
+- SymbolsMissing         it is some other library
+- LayoutMismatch         its structs are not those of 1.3

Knows no versions (see backends.discovery) and no handle.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.elf import NotElf, needed, own_machine, read_header
from backends.rkllm import raw
from backends.rkllm.structs import RKLLMParam, raw_byte

REQUIRED = (
    "rkllm_createDefaultParam",
    "rkllm_init",
    "rkllm_destroy",
    "rkllm_run",
    "rkllm_abort",
    "rkllm_set_chat_template",
)

_PACKAGES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6", "libgcc_s.so.1": "libgcc-s1"}
_MANY = 1 << 24  # more tokens than any context has; a float's bits read as an int are far beyond it


class LibraryError(Exception):
    """A runtime library that cannot be used; the message says why and what to do."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class LibraryNotFound(LibraryError):
    """The file is not there or cannot be read."""


class WrongArchitecture(LibraryError):
    """The file is for another machine. `machine` is what it is for, None where it is no library."""

    def __init__(self, path: Path, message: str, machine: str | None) -> None:
        super().__init__(path, message)
        self.machine = machine


class DependencyMissing(LibraryError):
    """Libraries that it needs, `names`, are not there."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        packages = [_PACKAGES[name] for name in names if name in _PACKAGES]
        remedy = f"apt install {' '.join(packages)}" if packages else "Install what provides it"
        super().__init__(
            path,
            f"{path} needs {', '.join(names)}, which this system does not have. {remedy}, then try again.",
        )
        self.names = tuple(names)


class NotLoadable(LibraryError):
    """The system's loader refuses it for another reason, which the message repeats."""


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
    """Open a librkllmrt and check that it can be one of 1.3. Raises LibraryError.

    Its symbols stay its own: two versions in one process would not mix them up, though each worker opens one.
    """
    _check_machine(path)
    try:
        functions = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        if absent := _absent(path):
            raise DependencyMissing(path, absent) from error
        raise NotLoadable(
            path, f"{path} cannot be loaded: {error}. Fetch the file again, or choose another one."
        ) from error
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


def _check_machine(path: Path) -> None:
    ours = own_machine()
    try:
        machine = read_header(path).machine
    except OSError as error:
        raise LibraryNotFound(
            path,
            f"{path} cannot be read: {error.strerror}. Put librkllmrt.so there, or correct "
            "RKSERVE_RUNTIME_DIRS.",
        ) from error
    except NotElf as error:
        raise WrongArchitecture(
            path,
            f"{path} is no library: it has no ELF header. Fetch the file again (a Git LFS pointer or an "
            "error page may have been saved in its place).",
            None,
        ) from error
    if machine != ours:
        raise WrongArchitecture(
            path,
            f"{path} is for {machine}, and this process runs on {ours or 'another system'}. Take the library "
            "from the vendor's directory for this machine.",
            machine,
        )


def _absent(path: Path) -> list[str]:
    """Return the libraries that `path` needs and that cannot be loaded, by name or from beside it."""
    try:
        names = needed(path)
    except (OSError, NotElf):
        return []
    return [name for name in names if not (_loads(name) or _loads(str(path.parent / name)))]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
