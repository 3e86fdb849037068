"""Whether a file may be installed as a runtime library. Pure: decides over what was read of it."""

from __future__ import annotations

from backends.discovery import FILE_NAMES, Kind, drivable, parse_version
from backends.identity import Identity
from server.runtimes.errors import Refused


def accepted(identity: Identity, machine: str | None, start: bytes, name: str) -> tuple[Kind, str]:
    """Return the library's kind and the version it is to be kept under. Raises Refused.

    machine: what this process runs as. start: the file's first bytes, to tell what a file is that is no
    library. name: of the file, for the message.
    """
    if identity.machine is None:
        raise Refused(f"{name} is no library: {_what_it_is(start)}")
    if identity.machine != machine:
        raise Refused(
            f"{name} is for {identity.machine}, and this machine runs {machine or 'another system'}. Take "
            f"the file of the vendor's directory {machine or 'for it'}."
        )
    if not identity.whole:
        raise Refused(f"{name} is shorter than its own headers say: it was cut off. Fetch it again.")
    if identity.kind is None or identity.version_text is None:
        raise Refused(
            f"{name} names no version of librkllmrt or librknnrt in its bytes, so it is another library, or "
            "one that was changed. Fetch the vendor's own file."
        )
    version = parse_version(identity.version_text)
    library = FILE_NAMES[identity.kind].removesuffix(".so")
    if version is None:
        raise Refused(f"{name}: {library} calls itself {identity.version_text}, which is no version.")
    abi = drivable(identity.kind)
    if not abi.contains(version, prereleases=True):
        raise Refused(
            f"{name} is {library} {identity.version_text}, and only {abi} can be used: another one has other "
            "data layouts and would corrupt memory instead of failing. Models name the version they want "
            "(rkserve models); most want 1.3.1."
        )
    return identity.kind, identity.version_text.strip().rstrip(".")


def _what_it_is(start: bytes) -> str:
    head = start.lstrip()[:200].lower()
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, which only names the real file. Download the file itself."
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page. Take the link that downloads the raw file."
    if start.startswith((b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        return "it is an archive. Unpack it and name the .so file in it."
    if not start:
        return "it is empty. Fetch it again."
    return "it has no ELF header. Fetch the .so file again."
