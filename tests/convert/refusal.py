"""What is said of a checkpoint that cannot be converted."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.errors import ConvertError
from convert.hf import convert_hf


def refusal(directory: Path) -> str:
    """Return why it is refused; nothing is written."""
    with pytest.raises(ConvertError) as caught:
        convert_hf(directory, directory.parent / "out")
    assert not (directory.parent / "out").exists()
    return caught.value.message
