"""A transfer does not let itself be led from https to http, where its bytes could be changed on the way."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from server.store.errors import TransferFailed
from server.store.partial import partial_file
from server.store.transfer import Place, fetch, http_client


def client_of(answers: dict[str, httpx2.Response]) -> httpx2.Client:
    """The client of transfers, but on a network that is made up: certificates would be no test of this."""
    with http_client() as real:
        return httpx2.Client(
            transport=httpx2.MockTransport(lambda request: answers[str(request.url)]),
            follow_redirects=real.follow_redirects,
            event_hooks=real.event_hooks,
        )


def moved(to: str) -> httpx2.Response:
    return httpx2.Response(302, headers={"location": to})


def no_pause(seconds: float) -> None:
    raise AssertionError("what no later try helps is not tried again")


@pytest.mark.parametrize("to", ["http://b/x", "//b/x", "https://b/x"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_redirects(scheme: str, to: str, tmp_path: Path) -> None:
    whole = {
        f"{kind}://b/x": httpx2.Response(200, stream=httpx2.ByteStream(b"whole"))
        for kind in ("http", "https")
    }
    client = client_of({f"{scheme}://a/x": moved(to), **whole})
    with client, partial_file(tmp_path / "x", "0" * 64) as partial:
        place = Place(f"{scheme}://a/x")
        if scheme == "https" and to == "http://b/x":
            with pytest.raises(TransferFailed, match="x could not be fetched: it is redirected from https"):
                fetch(client, lambda: place, partial, 5, "x", lambda size: None, pause=no_pause)
            assert partial.size_bytes == 0
        else:
            fetch(client, lambda: place, partial, 5, "x", lambda size: None, pause=no_pause)
            assert partial.size_bytes == 5
