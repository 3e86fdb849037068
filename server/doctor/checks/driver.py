"""Whether the kernel has the vendor's NPU driver, and a version that the libraries work with."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from server.doctor.facts import Facts
from server.doctor.finding import Finding, advice, bad, ok
from server.doctor.see import See

LEAST = Version("0.9.8")  # what librkllmrt 1.3 is known to work with; an older one makes it complain or fail

_KERNEL = (
    "install the newest kernel of your board's system (Radxa: sudo rsetup, System, System Update), reboot"
)


def check(facts: Facts) -> Iterator[Finding]:
    """Compare every place that tells a version."""
    driver = facts.driver
    if not facts.npu_wanted:
        return
    if not driver.present:
        other = ": it has the mainline driver (rocket), which the vendor's libraries cannot use"
        yield bad(
            f"the kernel has no rknpu driver{other if driver.mainline else ''}",
            "boot the vendor's kernel: the image of the board's maker, or Armbian's with a vendor kernel",
            See.NO_DRIVER,
        )
        return
    versions = {file: Version(text) for file, text in driver.versions.items()}
    if not versions:
        yield advice(
            "there is a driver, and no file that this user may read tells its version",
            "sudo rkserve doctor",
            See.OLD_DRIVER,
        )
        return
    told = ", ".join(f"{version} in {file}" for file, version in versions.items())
    if min(versions.values()) < LEAST:
        yield bad(f"the driver is too old for librkllmrt 1.3: {told}; {LEAST} works", _KERNEL, See.OLD_DRIVER)
    elif len(set(versions.values())) > 1:
        yield advice(f"two places tell different versions: {told}", "reboot, then look again", See.OLD_DRIVER)
    else:
        yield ok(f"rknpu {told}")
