"""What is wrong with a template itself, in contrast to what a request asks of it."""

from __future__ import annotations

from server.errors import LoadFailed


class TemplateError(LoadFailed):
    """The template of an entry is missing, does not compile or does what no template may.

    Raised when the server checks its entries at start; a request that meets it gets a load_failed.
    """
