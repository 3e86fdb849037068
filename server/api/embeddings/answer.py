"""The body of an embeddings response."""

from __future__ import annotations

import array
import asyncio
import base64
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from server.generation.embedding import Embeddings

_encode = msgspec.json.Encoder().encode
_AT_ONCE = 16


async def embeddings_body(model: str, made: Embeddings, *, as_base64: bool) -> bytes:
    """Return a whole list object as JSON. Lets others have the event loop between some vectors.

    as_base64: vectors as their bytes, little-endian float32, which is what the official clients ask for.
    """
    pieces = [b'{"object":"list","data":[']
    for index, vector in enumerate(made.vectors):
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)  # a thousand vectors as numbers take a tenth of a second
        shown: Any = base64.b64encode(vector).decode() if as_base64 else _floats(vector)
        pieces.append(b"," if index else b"")
        pieces.append(_encode({"object": "embedding", "index": index, "embedding": shown}))
    usage = {"prompt_tokens": made.prompt_tokens, "total_tokens": made.prompt_tokens}
    pieces.append(b'],"model":%s,"usage":%s}' % (_encode(model), _encode(usage)))
    return b"".join(pieces)


def _floats(vector: bytes) -> Sequence[float]:
    values = array.array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
