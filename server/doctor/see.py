"""Where a finding is explained: the sections of docs/troubleshooting.md, which begin with a symptom.

A test sees to it that each of them exists.
"""

from __future__ import annotations

from enum import StrEnum

PAGE = "docs/troubleshooting.md"


class See(StrEnum):
    """The anchor of a section."""

    NO_BOARD = "this-is-not-an-rk3588-board"
    NO_DRIVER = "the-npu-has-no-driver"
    OLD_DRIVER = "the-npu-driver-is-too-old"
    PERMISSION = "the-npus-devices-may-not-be-used"
    NO_RUNTIME = "no-fitting-runtime-library"
    LIBGOMP = "libgomp-is-missing"
    MEMORY = "there-is-not-enough-memory"
    DISK = "the-disk-is-full"
    SLOW = "answers-are-slow"
    HOT = "the-board-gets-hot"
    DAMAGED = "a-models-file-is-damaged"
    GARBAGE = "the-answer-is-garbage"
    TEMPLATE = "the-model-is-prompted-in-another-form"
    PORT = "the-port-is-taken"
    LAN = "other-devices-cannot-reach-the-server"
    KEYS = "401-a-key-is-asked-for-or-not-accepted"
    SETTINGS = "the-service-sees-other-settings-than-i-do"
    NOT_INSTALLED = "404-the-model-is-not-there"
    MODELS_FILE = "a-models-entry-is-refused"

    @property
    def link(self) -> str:
        """The page and the section in it."""
        return f"{PAGE}#{self}"
