"""What is asked of the files that are converted, whatever their format."""

from __future__ import annotations

import stat
from pathlib import Path

from convert.errors import ConvertError

_ENDLESS = (stat.S_ISFIFO, stat.S_ISCHR, stat.S_ISSOCK)


def check_no_stream(path: Path) -> None:
    """Raise ConvertError for a pipe, a device or a socket: reading it might never end.

    What is not there, or may not be looked at, is for whoever opens it to say.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if any(kind(mode) for kind in _ENDLESS):
        raise ConvertError(f"{path} is no file, but a pipe or a device. Write what it gives into a file.")
