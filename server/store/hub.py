"""The hub, through huggingface_hub: what a repository holds, and where each of its files is to be had.

The one module that imports huggingface_hub, some 10 MB that models need more: for commands, never for the
server. HF_ENDPOINT names a mirror, HF_TOKEN a login, as for every program that uses the hub.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from server.store.errors import TransferFailed
from server.store.transfer import UNUSABLE, Locate, Place

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
MOST_FILE_BYTES = 2**53  # far above any model: a number beyond it is no size


@dataclass(frozen=True)
class RepoFile:
    """A file of a repository. sha256: of a large one; git_sha1: of one that git itself keeps."""

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def identity(self) -> str:
        """What tells its content from any other."""
        return self.sha256 or self.git_sha1 or hashlib.sha256(self.name.encode()).hexdigest()


@dataclass(frozen=True)
class Repo:
    """A repository at one commit. card: the front matter of its README, by key."""

    name: str
    commit: str
    files: Mapping[str, RepoFile]
    card: Mapping[str, Any]


class Hub:
    """The hub, or the mirror that stands for it."""

    def __init__(self) -> None:
        from huggingface_hub import HfApi, constants

        self._api = HfApi(library_name="rkserve")
        self.endpoint: str = self._api.endpoint
        self.timeout_s = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)

    def repo(self, name: str, revision: str) -> Repo:
        """Return what a repository holds at a branch, tag or commit. Raises TransferFailed."""
        with _told(f"{name} (revision {revision})", self.endpoint):
            info = self._api.model_info(
                name, revision=revision, files_metadata=True, timeout=max(self.timeout_s, 10.0)
            )
        if not info.sha:
            raise TransferFailed(f"{self.endpoint} does not say at which commit {name} is: it is no hub")
        listed = [_listed(file, name, self.endpoint) for file in info.siblings or []]
        return Repo(name, info.sha, {file.name: file for file in listed}, _card(info))

    def locate(self, repo: Repo, file: RepoFile) -> Locate:
        """Return what tells where a file is to be had. Raises TransferFailed when it is asked."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # lazy there

        url = hf_hub_url(repo.name, file.name, revision=repo.commit, endpoint=self.endpoint)

        def place() -> Place:
            with _told(f"{file.name} of {repo.name}", self.endpoint):
                found = get_hf_file_metadata(
                    url, library_name="rkserve", timeout=max(self.timeout_s, 10.0), endpoint=self.endpoint
                )
            if file.sha256 is not None and found.etag not in (None, file.sha256):
                raise TransferFailed(
                    f"{self.endpoint} contradicts itself: it lists {file.name} of {repo.name} with the "
                    "sha256 "
                    f"{file.sha256} and offers one with {found.etag}. Start again later, or without a mirror "
                    "(HF_ENDPOINT)"
                )
            # The login is for the hub alone, not for the storage it leads to.
            same = _origin(found.location) == _origin(url)
            headers = build_hf_headers(library_name="rkserve") if same else {}
            return Place(found.location, {key: str(value) for key, value in headers.items()})

        return place


def _card(info: Any) -> dict[str, Any]:
    return {} if info.card_data is None else dict(info.card_data.to_dict())


def _listed(file: Any, repo: str, endpoint: str) -> RepoFile:
    """Return a file as the hub lists it. Raises TransferFailed for what is no name, size or hash.

    huggingface_hub passes on whatever came; here a hash becomes part of a file's name, and a size is reckoned
    with.
    """
    size = (file.size if file.lfs is None else file.lfs.size) or 0
    sha256 = None if file.lfs is None else file.lfs.sha256
    git_sha1 = None if file.lfs is not None else file.blob_id
    sound = (
        isinstance(file.rfilename, str)
        and type(size) is int
        and 0 <= size <= MOST_FILE_BYTES
        and (file.lfs is None or (isinstance(sha256, str) and _SHA256.fullmatch(sha256)))
        and (git_sha1 is None or (isinstance(git_sha1, str) and _SHA1.fullmatch(git_sha1)))
    )
    if not sound:
        raise TransferFailed(
            f"{endpoint} lists {file.rfilename!r} of {repo} with a size of {size!r} and the hash "
            f"{sha256 or git_sha1!r}, which cannot be: that is no hub. Is HF_ENDPOINT right?"
        )
    return RepoFile(file.rfilename, size, sha256, git_sha1)


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def git_sha1(content: bytes) -> str:
    """Return the hash that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def _told(what: str, endpoint: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub into ones that say what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise TransferFailed(
            f"{what} is open only to those who have asked for it: accept its terms at {endpoint}, make a "
            "token there, and name it in HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise TransferFailed(f"{endpoint} has no {what}; check source.revision of the entry") from error
    except errors.RepositoryNotFoundError as error:
        raise TransferFailed(
            f"{endpoint} has no {what}, or shows it to its members only (HF_TOKEN); check its name"
        ) from error
    except errors.EntryNotFoundError as error:
        raise TransferFailed(f"{endpoint} has no {what}") from error
    except errors.OfflineModeIsEnabled as error:
        raise TransferFailed(f"{what} cannot be asked for while HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise TransferFailed(f"{endpoint} says {status} of {what}; start again later") from error
    except httpx2.TransportError as error:
        raise TransferFailed(
            f"{endpoint} cannot be reached ({error or type(error).__name__}). Is this machine online? "
            "HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy"
        ) from error
    except (errors.FileMetadataError, errors.HFValidationError, *UNUSABLE, ValueError, TypeError) as error:
        raise TransferFailed(f"{endpoint} does not answer for {what} as a hub does: {error}") from error
