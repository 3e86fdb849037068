"""What can be wrong with a runtime library that is to be installed. Each message says what to do."""

from __future__ import annotations


class InstallError(Exception):
    """A library that is not installed, and why."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Refused(InstallError):
    """The file is no library that this machine can use."""


class NotFetched(InstallError):
    """The file could not be had in full."""


class NotPlaced(InstallError):
    """It cannot be written where libraries belong."""
