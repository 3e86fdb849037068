"""The images of one request: where each comes from, limits, and what can be told cheaply of its content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from backends.base import Image
from server.errors import InvalidRequest
from server.images.data_url import BadDataUrl, decode_data_url, is_data_url
from server.images.fetch import Charge, Fetcher, FetchError
from server.images.header import UnreadableImage, read_header
from server.settings import Settings

MOST_IMAGES = 128  # in a request: more than any context has room for
FETCH_S = 30.0  # for all that a request wants fetched
MOST_FETCHES = 8  # at the same time, of all requests; others wait within their time
LARGE = 250_000  # characters of a data URL from which on decoding would hold up the streams of others


class ImageLoader:
    """Gets images. One for the whole server; holds no state of any client.

    `charge` takes what is fetched from the budget that the request at hand shares. `fetcher` is for tests.
    """

    def __init__(
        self, settings: Settings, fetcher: Fetcher | None = None, charge: Charge = lambda size: None
    ) -> None:
        self._most_bytes = int(settings.max_body_mb * 2**20)
        self._most_pixels = int(settings.max_image_mp * 1e6)
        self._max_image_mp = settings.max_image_mp
        self._may_fetch = settings.image_urls
        self._fetcher = fetcher or Fetcher()
        self._charge = charge
        self._fetches = asyncio.Semaphore(MOST_FETCHES)

    async def load(self, parts: Sequence[Mapping[str, Any]]) -> list[Image]:
        """Return the image files that the image parts of normalised messages name, in their order.

        Together they may have as many bytes as a body. Raises InvalidRequest, which names the part, and
        ServerBusy where there is no memory for what is fetched.
        """
        if len(parts) > MOST_IMAGES:
            raise InvalidRequest(
                f"the conversation has {len(parts)} images, and {MOST_IMAGES} is the most; drop old ones",
                parts[MOST_IMAGES]["field"],
            )
        known: dict[str, bytes] = {}  # a URL that stands there twice is decoded or fetched once
        images = []
        try:
            async with asyncio.timeout(FETCH_S):
                for part in parts:
                    url, field = part["url"], part["field"]
                    if url not in known:
                        left = self._most_bytes - sum(map(len, known.values()))
                        known[url] = await self._checked(url, field, left)
                    images.append(Image(known[url], field))
        except TimeoutError:
            raise InvalidRequest(
                f"the images could not be fetched within {FETCH_S:g} s; send them as data URLs", field
            ) from None
        return images

    async def _checked(self, url: str, field: str, left: int) -> bytes:
        try:
            data = await self._bytes(url, field, left)
            header = read_header(data)
        except (BadDataUrl, FetchError, UnreadableImage) as error:
            raise InvalidRequest(f"{field} {error}", field) from None
        if header.width * header.height > self._most_pixels:
            raise InvalidRequest(
                f"{field} is an image of {header.width} x {header.height} pixels, more than the "
                f"{self._max_image_mp:g} million this server takes (RKSERVE_MAX_IMAGE_MP); make it smaller",
                field,
            )
        return data

    async def _bytes(self, url: str, field: str, left: int) -> bytes:
        if is_data_url(url):
            if len(url) < LARGE:
                return decode_data_url(url)
            return await asyncio.to_thread(decode_data_url, url)
        if not self._may_fetch:
            raise InvalidRequest(
                f"{field} is no data URL, and this server fetches no images (RKSERVE_IMAGE_URLS is off); "
                "send the image itself as data:image/png;base64,...",
                field,
            )
        async with self._fetches:
            return await self._fetcher.fetch(url, left, self._charge)
