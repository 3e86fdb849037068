"""Which redirects are followed: none from https to http, where anybody on the way could change what comes."""

from __future__ import annotations

import httpx2


def leaves_https(before: httpx2.URL, after: httpx2.URL) -> bool:
    """Return whether a redirect would give up what https protects."""
    return before.scheme == "https" and after.scheme != "https"


def refuse_leaving_https(response: httpx2.Response) -> None:
    """Raise httpx2.UnsupportedProtocol for such a redirect: a client's hook for each response."""
    if not response.has_redirect_location:
        return
    after = response.url.join(response.headers["location"])
    if leaves_https(response.url, after):
        raise httpx2.UnsupportedProtocol(
            f"it is redirected from https to {after}, where anybody on the way can change it"
        )
