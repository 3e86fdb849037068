"""What can go wrong with a model's files. Drawn as a tree:

StoreError
+- Busy            another command works on the model
+- NoRoom          the disk is too small, or became full
+- WrongBytes      what was fetched, or lies there, is not what it should be
+- TransferFailed  the other side cannot be reached, refuses, or sends something else
"""

from __future__ import annotations


class StoreError(Exception):
    """Something about a model's files. The message says what is wrong, why, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Busy(StoreError):
    """Another command is at work on the same model."""


class NoRoom(StoreError):
    """There is too little room on the disk."""


class WrongBytes(StoreError):
    """Bytes that are not those a hash was made of."""


class TransferFailed(StoreError):
    """Nothing, or not the right thing, came from the other side."""
