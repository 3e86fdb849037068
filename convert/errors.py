"""The error of everything in convert. Its message says what is wrong, why, and what to do."""

from __future__ import annotations


class ConvertError(Exception):
    """A model file cannot be fetched, read or converted, for a reason that can be acted on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class TargetExists(ConvertError):
    """Something stands where the folder is to be written. replaceable: it is a hybrid folder."""

    def __init__(self, message: str, *, replaceable: bool) -> None:
        super().__init__(message)
        self.replaceable = replaceable
