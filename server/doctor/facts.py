"""What a machine shows, as the checks are given it. Values only: who reads them is in `gather`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

NpuNodeKind = Literal["npu", "heap"]
PortState = Literal["free", "rkserve", "other", "refused"]


@dataclass(frozen=True)
class Board:
    """machine: as `uname -m` says. compatible: of the device tree, none on a PC."""

    machine: str
    compatible: tuple[str, ...] = ()
    model: str | None = None

    @property
    def soc(self) -> str | None:
        """The chip, such as rk3588s; None where it is none of Rockchip's."""
        names = (name.partition(",") for name in self.compatible)
        return next((chip for vendor, _, chip in names if vendor == "rockchip" and chip[:2] == "rk"), None)

    @property
    def rk3588(self) -> bool:
        """Whether the chip is the one that models are made for."""
        return self.soc is not None and self.soc.startswith("rk3588")


@dataclass(frozen=True)
class Driver:
    """versions: as read, by the file each stands in. denied: files that this user may not read.

    present: whether anything of the vendor's driver is there. mainline: whether the kernel has the other one,
    which the vendor's libraries cannot use.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    present: bool = False
    mainline: bool = False


@dataclass(frozen=True)
class Person:
    """Somebody who is to use the NPU. service: the service's user, else whoever asks."""

    name: str
    service: bool = False


@dataclass(frozen=True)
class Node:
    """A device node. group: whose members may use it, None where that gives nothing. denied: who may not."""

    path: str
    kind: NpuNodeKind
    described: str
    group: str | None = None
    denied: tuple[Person, ...] = ()


@dataclass(frozen=True)
class Clock:
    """A clock that has a governor; frequencies in MHz, None where they are not told. file: the governor's."""

    name: str
    file: str
    governor: str
    mhz: int | None = None
    most_mhz: int | None = None


@dataclass(frozen=True)
class Heat:
    """celsius: by thermal zone. slowed: what the kernel slows down because of heat now."""

    celsius: Mapping[str, float] = field(default_factory=dict)
    slowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Swap:
    """A place that memory is written out to. size and used in MB."""

    path: str
    size_mb: int
    used_mb: int


@dataclass(frozen=True)
class Memory:
    """In MB."""

    total_mb: int
    available_mb: int
    reserve_mb: int
    swaps: tuple[Swap, ...] = ()


@dataclass(frozen=True)
class Disk:
    """Of the directory of the models, or where it will be made. directory: that exists."""

    wanted: Path
    directory: Path
    free_mb: int


@dataclass(frozen=True)
class Prompt:
    """How an entry renders a conversation, and how the template that came with the model does.

    problem: why the entry's cannot be used. own: None where none came, or where it does not take the
    conversation.
    """

    form: str
    problem: str | None = None
    ours: str | None = None
    own: str | None = None


@dataclass(frozen=True)
class Model:
    """An installed model. library: what would run it here; problem: why nothing does.

    encoder: whether it has an image encoder for the NPU. hash: what is known of its bytes.
    """

    id: str
    memory_mb: int
    npu: bool
    library: str | None
    problem: str | None
    encoder: bool
    prompt: Prompt
    hash: HashState


@dataclass(frozen=True)
class HashState:
    """known: whether anybody has told what the hash should be. checked: when all files were found to have it.

    damaged: what is wrong, in words; None where nothing is known to be.
    """

    known: bool = False
    checked: str | None = None
    damaged: str | None = None


@dataclass(frozen=True)
class Network:
    """host, port: where the server listens by these settings. urls: for other machines, whether each answers.

    holder: the program at the port where it is known. refused: why nothing can listen there.
    """

    host: str
    port: int
    reachable: bool
    open_lan: bool
    state: PortState = "free"
    holder: str | None = None
    refused: str | None = None
    urls: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Keys:
    """wanted: a setting names the file. problems: what is wrong with it. command: makes a key in it."""

    path: Path
    wanted: bool
    names: int = 0
    problems: tuple[str, ...] = ()
    denied: bool = False
    command: str = "rkserve key add NAME"


@dataclass(frozen=True)
class Service:
    """The systemd units. user: whom it runs as. env_denied: its settings may not be read by this user."""

    unit: str | None = None
    user: str | None = None
    clocks_unit: bool = False
    env_file: str | None = None
    env_denied: bool = False


@dataclass(frozen=True)
class Facts:
    """Everything. libgomp: where it was found. runtimes: libraries found, name and version.

    system_librknnrt: the path of the one that rknn-toolkit-lite2 takes, None where it is not there.
    """

    board: Board
    driver: Driver
    people: tuple[Person, ...]
    nodes: tuple[Node, ...]
    libgomp: str | None
    runtimes: tuple[str, ...]
    system_librknnrt: str | None
    models: tuple[Model, ...]
    memory: Memory
    disk: Disk
    clocks: tuple[Clock, ...]
    heat: Heat
    network: Network
    keys: Keys
    service: Service
    registry_problem: str | None = None

    @property
    def npu_wanted(self) -> bool:
        """Whether this machine has an NPU that models are to run on."""
        return self.board.rk3588 or self.driver.present
