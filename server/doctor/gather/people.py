"""Who is to use the NPU, and which device nodes each of them may use.

Worked out from owner, group and mode, since nobody can ask the kernel about another user; for whoever asks
the kernel's own word counts too, which also knows access lists.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from server.doctor.facts import Node, NpuNodeKind, Person, Service
from server.sysroot import Sysroot

_HEAPS = "/dev/dma_heap"
_RENDER = "/dev/dri"
_OLD = "/dev/rknpu"


_Users = dict[str, tuple[int, int]]  # uid and gid, by name
_Groups = dict[str, tuple[int, frozenset[str]]]  # gid and members, by name


@dataclass(frozen=True)
class Account:
    """A user with the groups that count. own: it is who runs this process."""

    person: Person
    uid: int
    gids: frozenset[int]
    own: bool = False


def accounts(sysroot: Sysroot, service: Service, extra_groups: Sequence[str] = ()) -> list[Account]:
    """Return whoever asks, and the service's user where there is a service and its user is known.

    extra_groups: those that the unit names beside the user's own.
    """
    users, groups = _users(sysroot), _groups(sysroot)
    own = _own(users, groups)
    if service.user is None or service.user not in users:
        return [own]
    uid, _ = users[service.user]
    member = _member(service.user, users, groups)
    member |= {groups[group][0] for group in extra_groups if group in groups}
    return [own, Account(Person(service.user, service=True), uid, frozenset(member))]


def _own(users: _Users, groups: _Groups) -> Account:
    """Return who runs this process; behind sudo the person who said it, since root may do everything."""
    asking = os.environ.get("SUDO_USER", "")
    if os.geteuid() == 0 and asking in users:
        return Account(Person(asking), users[asking][0], frozenset(_member(asking, users, groups)))
    name = next((name for name, (uid, _) in users.items() if uid == os.geteuid()), str(os.geteuid()))
    return Account(Person(name), os.geteuid(), frozenset({os.getegid(), *os.getgroups()}), own=True)


def _member(user: str, users: _Users, groups: _Groups) -> set[int]:
    return {users[user][1]} | {number for number, members in groups.values() if user in members}


def nodes(sysroot: Sysroot, people: Sequence[Account]) -> list[Node]:
    """Return the device nodes that the vendor's libraries open, and who may not."""
    names = {number: name for name, (number, _) in _groups(sysroot).items()}
    users = {uid: name for name, (uid, _) in _users(sysroot).items()}
    found: list[Node] = []
    for path, kind in _paths(sysroot):
        try:
            status = sysroot.path(path).stat()
        except OSError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        owner = users.get(status.st_uid, str(status.st_uid))
        group = names.get(status.st_gid, str(status.st_gid))
        found.append(
            Node(
                path=path,
                kind=kind,
                described=f"{mode:04o} {owner}:{group}",
                group=group if mode & 0o060 == 0o060 and status.st_gid != 0 else None,
                denied=tuple(one.person for one in people if not _may(one, status, sysroot, path)),
            )
        )
    return found


def _paths(sysroot: Sysroot) -> list[tuple[str, NpuNodeKind]]:
    render = [name for name in sysroot.names(_RENDER) if name.startswith("renderD")]
    # Where the kernel tells which of them is the NPU's, the others (the GPU's) are not asked for.
    npus = [name for name in render if "rknpu" in _driver_of(sysroot, name)] or render
    found: list[tuple[str, NpuNodeKind]] = [(f"{_RENDER}/{name}", "npu") for name in npus]
    if sysroot.exists(_OLD):
        found.append((_OLD, "npu"))
    return found + [(f"{_HEAPS}/{name}", "heap") for name in sysroot.names(_HEAPS)]


def _driver_of(sysroot: Sysroot, render: str) -> str:
    return (sysroot.text(f"/sys/class/drm/{render}/device/uevent") or "").lower()


def _may(account: Account, status: os.stat_result, sysroot: Sysroot, path: str) -> bool:
    if account.uid == 0:
        return True
    if account.own and sysroot.real:
        return os.access(path, os.R_OK | os.W_OK)
    return may_read_and_write(account, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))


def may_read_and_write(account: Account, uid: int, gid: int, mode: int) -> bool:
    """Return what the mode bits say: the first of owner, group and others that the user is counts."""
    if account.uid == uid:
        return mode & 0o600 == 0o600
    if gid in account.gids:
        return mode & 0o060 == 0o060
    return mode & 0o006 == 0o006


def _users(sysroot: Sysroot) -> _Users:
    """Return uid and gid of the users in /etc/passwd, which is where a service's user is."""
    found = {}
    for line in (sysroot.text("/etc/passwd") or "").splitlines():
        name, *fields = line.split(":")
        if len(fields) >= 3 and fields[1].isdecimal() and fields[2].isdecimal():
            found[name] = (int(fields[1]), int(fields[2]))
    return found


def _groups(sysroot: Sysroot) -> _Groups:
    found = {}
    for line in (sysroot.text("/etc/group") or "").splitlines():
        name, *fields = line.split(":")
        if len(fields) >= 3 and fields[1].isdecimal():
            found[name] = (int(fields[1]), frozenset(filter(None, fields[2].split(","))))
    return found
