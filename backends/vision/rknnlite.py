"""An image encoder on the NPU, through the vendor's rknn-toolkit-lite2.

The package is there on aarch64 only, and closed. It reports by return codes and prints, hardly by exceptions;
a file that is no .rknn loads without complaint, and a run that fails returns None. It takes no library but
/usr/lib/librknnrt.so, wherever else one lies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from packaging.specifiers import SpecifierSet

from backends.base import BackendError, EngineLost
from backends.discovery import parse_version
from backends.spec import VisionOptions

LIBRARY = "/usr/lib/librknnrt.so"
ALL_CORES = 7  # a bit a core: the NPU's turn is ours as a whole
_API = re.compile(r"API:\D*(\d+\.\d+[0-9A-Za-z.+-]*)")


class RknnLiteEncoder:
    """See executor.EncoderExecutor."""

    def __init__(self, path: Path, options: VisionOptions) -> None:
        """Load a .rknn file. Raises BackendError."""
        self._path = path
        self._layout = options.layout
        self._lite = _toolkit()
        try:
            self._load()
            self.runtime = f"librknnrt {self._checked_version(options.runtime)}"
        except BackendError:
            self.close()
            raise
        except Exception as error:  # whatever closed code raises
            self.close()
            raise BackendError(
                "load_failed",
                f"rknn-toolkit-lite2 failed while it loaded the image encoder {path}: "
                f"{type(error).__name__}: {error}. Check the file, {LIBRARY} and the NPU driver.",
            ) from error

    def run(self, pixels: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        try:
            outputs = self._lite.inference(inputs=[pixels], data_format=[self._layout])
        except Exception as error:
            raise self._lost(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(outputs, list | tuple) or not outputs:
            raise self._lost("returned nothing")
        if not all(isinstance(output, np.ndarray) for output in outputs):
            raise self._lost("returned what are no arrays")
        return outputs

    def close(self) -> None:
        lite, self._lite = self._lite, None
        if lite is not None:
            try:
                lite.release()
            except Exception as error:  # nothing more can be done about it
                print(f"rknn-toolkit-lite2 did not release the image encoder: {error}", file=sys.stderr)

    def _load(self) -> None:
        if (status := self._lite.load_rknn(str(self._path))) != 0:
            raise BackendError(
                "model_corrupt",
                f"rknn-toolkit-lite2 cannot load the image encoder {self._path} (it returned {status}). "
                "Put the whole .rknn file, converted for rk3588, there.",
            )
        if (status := self._lite.init_runtime(core_mask=ALL_CORES)) != 0:
            raise BackendError(
                "load_failed",
                f"The image encoder {self._path} cannot be started on the NPU (init_runtime returned "
                f"{status}). rknn-toolkit-lite2 needs the NPU's driver and {LIBRARY}, of a version that fits "
                "the file (rkserve doctor looks for both): put it there, or take the encoder's file away to "
                "chat without images.",
            )

    def _checked_version(self, wanted: str | None) -> str:
        """Return the version of the library in use. Raises BackendError where it is none that is wanted."""
        said = self._lite.get_sdk_version()
        match = _API.search(said) if isinstance(said, str) else None
        version = None if match is None else parse_version(match[1])
        if version is None:
            return "of an unknown version"
        if wanted and not SpecifierSet(wanted).contains(version, prereleases=True):
            raise BackendError(
                "runtime_version_mismatch",
                f"The image encoder {self._path} needs librknnrt {wanted}, and rknn-toolkit-lite2 has loaded "
                f"{version}: it takes {LIBRARY} and no other. Put a fitting version there.",
            )
        return str(version)

    def _lost(self, what: str) -> EngineLost:
        return EngineLost(
            f"The NPU failed on the image encoder {self._path}: rknn-toolkit-lite2 {what}. If it happens "
            "again, check that no other program uses the NPU, and its driver's messages (dmesg)."
        )


def _toolkit() -> Any:
    try:
        from rknnlite.api import RKNNLite

        return RKNNLite(verbose=False)
    except ImportError as error:
        raise BackendError(
            "load_failed",
            f"An image encoder in a .rknn file needs rknn-toolkit-lite2, which cannot be imported ({error}). "
            "Install rkserve with its extra rknn (aarch64, Python up to 3.12), or take the encoder's file "
            "away to chat without images.",
        ) from error
    except Exception as error:
        raise BackendError(
            "load_failed",
            f"rknn-toolkit-lite2 cannot be started: {type(error).__name__}: {error}. Install it again.",
        ) from error
