"""Starts a program in namespaces of its own: `python isolate.py [OPTION...] -- ARGV...`.

--host      the host's network
--network   a new network namespace with nothing but loopback, which is up
--join=PID  the network namespace of that process (runc's exec joins those namespaces
            only that its own config made, and would stay on ours)
--cgroups   hide a hybrid cgroup hierarchy, before which crun gives up although it was
            told to leave cgroups alone

In any case it gets a mount namespace from which nothing gets out, so that no mount of a
container can be left on the host. It is a program of its own, with the standard library
only, because a process with threads must not change its namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000  # sched.h
MS_REC, MS_PRIVATE = 0x4000, 0x40000  # sys/mount.h
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1  # linux/sockios.h, net/if.h
_HYBRID = Path("/sys/fs/cgroup/unified")


def main(arguments: list[str]) -> None:
    """Change namespaces, then become the program."""
    split = arguments.index("--")
    options, argv = arguments[:split], arguments[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    network = CLONE_NEWNET if "--network" in options else 0
    _check(libc.unshare(CLONE_NEWNS | network), "unshare")
    _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    if "--cgroups" in options and _HYBRID.is_dir():
        _check(libc.mount(b"none", bytes(_HYBRID), b"tmpfs", 0, None), "hide cgroups")
    for option in options:
        if option.startswith("--join="):
            with open(f"/proc/{int(option[7:])}/ns/net") as namespace:  # noqa: PTH123
                _check(libc.setns(namespace.fileno(), CLONE_NEWNET), "join the network")
    if network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("16sH22x", b"lo", 0)
            name, flags = struct.unpack("16sH22x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))
            fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | IFF_UP))
    os.execvp(argv[0], argv)  # noqa: S606 (no shell is wanted)


def _check(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        sys.exit(f"isolate: cannot {what}: {os.strerror(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
