"""Whether the NPU's device nodes are there, and may be used by whoever is to use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from server.doctor.facts import Facts, Node, Person
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See


def check(facts: Facts) -> Iterator[Finding]:
    """Look at each person's way to the NPU, then to the memory it may need."""
    if not facts.driver.present:
        return
    npu = [node for node in facts.nodes if node.kind == "npu"]
    heaps = [node for node in facts.nodes if node.kind == "heap"]
    if not npu:
        yield bad(
            "neither /dev/dri/renderD* nor /dev/rknpu is there, although the kernel has the driver",
            "look at what the kernel says of it: sudo dmesg | grep -i rknpu",
            See.NO_DRIVER,
        )
        return
    for person in facts.people:
        closed = [node for node in npu if person in node.denied]
        # Where nothing tells which of the render nodes is the NPU's, the closed one may be another's.
        if closed and len(closed) == len(npu):
            yield bad(_why(person, closed), _mend(person, closed), See.PERMISSION)
        elif closed:
            yield advice(_why(person, closed), _mend(person, closed), See.PERMISSION)
        elif shut := [node for node in heaps if person in node.denied]:
            # Needed by the older driver that has no render node of its own: its memory comes from there.
            result = bad if all(node.path == "/dev/rknpu" for node in npu) else advice
            yield result(_why(person, shut), _mend(person, shut), See.PERMISSION)
        else:
            yield ok(f"{_named(person)} may use {', '.join(node.path for node in (*npu, *heaps))}")


def _named(person: Person) -> str:
    return f"{person.name}, the service's user," if person.service else person.name


def _why(person: Person, nodes: Sequence[Node]) -> str:
    return f"{_named(person)} may not use {', '.join(f'{node.path} ({node.described})' for node in nodes)}"


def _mend(person: Person, nodes: Sequence[Node]) -> str:
    then = "sudo systemctl restart rkserve" if person.service else "log in again"
    groups = {node.group for node in nodes}
    if None not in groups:
        return f"sudo usermod -aG {','.join(sorted(map(str, groups)))} {person.name}, then {then}"
    if person.service:
        return "sudo rkserve service install, which puts udev rules in place that give them to groups"
    subsystem = "dma_heap" if nodes[0].kind == "heap" else "drm"
    if any(node.path == "/dev/rknpu" for node in nodes):
        return "sudo chgrp video /dev/rknpu && sudo chmod 660 /dev/rknpu; a udev rule makes it last"
    rule = (
        f'SUBSYSTEM=="{subsystem}", GROUP="{"video" if subsystem == "dma_heap" else "render"}", MODE="0660"'
    )
    return (
        f"echo '{rule}' | sudo tee /etc/udev/rules.d/60-rkserve-{subsystem}.rules && "
        "sudo udevadm control --reload && sudo udevadm trigger, then add the user to that group"
    )
