"""The door from the command line to `convert`, whose requirements are an extra that may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.cli.console import CommandError

_EXTRA = frozenset({"gguf", "onnx", "uv"})


@contextmanager
def converting() -> Iterator[None]:
    """Turn the errors of `convert`, a missing extra among them, into CommandError."""
    try:
        from convert.errors import ConvertError
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    try:
        yield
    except ConvertError as error:
        raise CommandError(error.message) from error
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> CommandError:
    return CommandError(
        f"this needs the package {error.name}, which is not installed: install rkserve with its extra "
        f"convert, or add to its environment: pip install {' '.join(sorted(_EXTRA))}"
    )
