"""The vendor's rknn-toolkit-lite2, one file at a time: its way of failing turned into errors of ours.

The package is there on aarch64 only, and closed. It reports by return codes and prints, hardly by exceptions;
a file that is no .rknn loads without complaint, and a run that fails returns None. What rknn_run itself
returns it does not heed (2.5.0), so that such a failure is seen only where the outputs fail, too. It
takes no library but /usr/lib/librknnrt.so, wherever else one lies, and copies every input and output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from backends.base import BackendError, EngineLost
from backends.discovery import parse_version

LIBRARY = "/usr/lib/librknnrt.so"
_API = re.compile(r"API:\D*(\d+\.\d+[0-9A-Za-z.+-]*)")


class LiteModel:
    """A loaded .rknn file. Owns it until `close`."""

    def __init__(self, path: Path, core_mask: int, *, what: str = "segment", otherwise: str = "") -> None:
        """Load a file and start it on cores of the NPU. Raises BackendError.

        what: the file is to the model. otherwise: what else a person can do about a failure, a sentence.
        """
        self._what = f"the {what} {path}"
        self._begin = f"The {what} {path}"
        self._otherwise = f" {otherwise}" if otherwise else ""
        self._path = path
        self._lite = _toolkit(self._otherwise)
        try:
            self._load(core_mask)
        except BackendError:
            self.close()
            raise
        except Exception as error:  # whatever closed code raises
            self.close()
            raise BackendError(
                "load_failed",
                f"rknn-toolkit-lite2 failed while it loaded {self._what}: {type(error).__name__}: {error}. "
                f"Check the file, {LIBRARY} and the NPU driver.{self._otherwise}",
            ) from error

    def library_version(self, wanted: str | None) -> str:
        """Return the version of the library in use. Raises BackendError where it is none that is wanted."""
        try:
            said = self._lite.get_sdk_version()
        except Exception as error:
            raise BackendError(
                "load_failed",
                f"rknn-toolkit-lite2 did not tell the version of {LIBRARY}: {type(error).__name__}: {error}. "
                "Install it again.",
            ) from error
        match = _API.search(said) if isinstance(said, str) else None
        version = None if match is None else parse_version(match[1])
        if version is None:
            return "of an unknown version"
        if wanted and not SpecifierSet(wanted).contains(version, prereleases=True):
            raise BackendError(
                "runtime_version_mismatch",
                f"{self._begin} needs librknnrt {wanted}, and rknn-toolkit-lite2 has loaded {version}: it "
                f"takes {LIBRARY} and no other. Put a fitting version there.{self._otherwise}",
            )
        return str(version)

    def run(self, inputs: Sequence[Any], layouts: Sequence[str]) -> Sequence[Any]:
        """Return the outputs as the toolkit gives them, copies of its own. Raises EngineLost."""
        try:
            outputs = self._lite.inference(inputs=list(inputs), data_format=list(layouts))
        except Exception as error:
            raise self.lost(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(outputs, list | tuple) or not outputs:
            raise self.lost("returned nothing")
        return outputs

    def lost(self, what: str) -> EngineLost:
        """Return the error for a run after which the state of the NPU is not known. what: it did."""
        return EngineLost(
            f"The NPU failed on {self._what}: rknn-toolkit-lite2 {what}. If it happens again, check that no "
            "other program uses the NPU, and its driver's messages (dmesg)."
        )

    def close(self) -> None:
        """Give the file back. May be called again."""
        lite, self._lite = self._lite, None
        if lite is not None:
            try:
                lite.release()
            except Exception as error:  # nothing more can be done about it
                print(f"rknn-toolkit-lite2 did not release {self._path.name}: {error}", file=sys.stderr)

    def _load(self, core_mask: int) -> None:
        if (status := self._lite.load_rknn(str(self._path))) != 0:
            raise BackendError(
                "model_corrupt",
                f"rknn-toolkit-lite2 cannot load {self._what} (it returned {status}). Put the whole .rknn "
                f"file, built for rk3588, there.{self._otherwise}",
            )
        if (status := self._lite.init_runtime(core_mask=core_mask)) != 0:
            raise BackendError(
                "load_failed",
                f"{self._begin} cannot be started on the NPU (init_runtime returned {status}). "
                f"rknn-toolkit-lite2 needs the NPU's driver and {LIBRARY}, of a version that fits the file."
                f"{self._otherwise}",
            )


def _toolkit(otherwise: str) -> Any:
    try:
        from rknnlite.api import RKNNLite

        return RKNNLite(verbose=False)
    except ImportError as error:
        raise BackendError(
            "load_failed",
            f"rknn-toolkit-lite2 is needed and cannot be imported ({error}). Install rkserve with its extra "
            f"rknn (aarch64, Python up to 3.12).{otherwise}",
        ) from error
    except Exception as error:
        raise BackendError(
            "load_failed",
            f"rknn-toolkit-lite2 cannot be started: {type(error).__name__}: {error}. Install it again.",
        ) from error
