"""Licences as publishers name them, and as SPDX does."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Hugging Face licence tags of models to SPDX identifiers; any other becomes a LicenseRef.
_SPDX_BY_TAG: Mapping[str, str] = {
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by-nc-sa-4.0": "CC-BY-NC-SA-4.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0",
    "cc0-1.0": "CC0-1.0",
    "mit": "MIT",
}


def license_id(tag: str) -> str:
    """Return the SPDX identifier of a licence tag of Hugging Face."""
    return _SPDX_BY_TAG.get(tag.lower()) or f"LicenseRef-{re.sub(r'[^A-Za-z0-9.-]+', '-', tag)}"
