"""What is asked of files in several places. Knows no format and no engine."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

# What writing ends with where there is no room: of the disk, of the user, of a file.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal digits; reads all of it. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
