"""The NVIDIA GPUs of this machine, for containers that no NVIDIA toolkit prepares.

A container needs the device nodes and the user-space part of the driver, which must be
of the kernel module's own version and therefore comes from the host, never from the
image. Libraries are mounted one by one to /usr/local/nvidia/lib64: the folder that they
come from may hold half of the host's system.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from kiln.canonical import JSON
from kiln.errors import CannotHere

TARGET = "/usr/local/nvidia"
LIBRARY_PATH = f"{TARGET}/lib64"

_DEV = Path("/dev")
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/*")
# Where drivers put libcuda: containers and COS, Debian and Ubuntu, Fedora and SUSE, WSL.
_FOLDERS = (
    Path(LIBRARY_PATH),
    Path(f"{TARGET}/lib"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/lib/wsl/lib"),
)
_LIBRARIES = ("libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*", "libnvcuvid.so*")


@dataclass(frozen=True)
class Gpu:
    """What a container gets. devices: character devices below /dev."""

    devices: tuple[Path, ...]
    libraries: tuple[Path, ...]

    def device_specs(self) -> list[dict[str, JSON]]:
        """`linux.devices` of the OCI runtime spec."""
        return [
            {"path": str(path), "type": "c", "fileMode": 0o666, "uid": 0, "gid": 0,
             "major": os.major(path.stat().st_rdev), "minor": os.minor(path.stat().st_rdev)}
            for path in self.devices
        ]  # fmt: skip

    def device_rules(self) -> list[dict[str, JSON]]:
        """`linux.resources.devices`: these and no others (runc adds /dev/null and its kin)."""
        rules: list[dict[str, JSON]] = [{"allow": False, "access": "rwm"}]
        for spec in self.device_specs():
            place = {name: spec[name] for name in ("type", "major", "minor")}
            rules.append({"allow": True, "access": "rw", **place})
        return rules


def find_gpu(dev: Path = _DEV, folders: tuple[Path, ...] = _FOLDERS) -> Gpu:
    """The machine's GPUs and driver. Raises CannotHere("run.no-gpu")."""
    devices = [
        path
        for pattern in _NODES
        for path in sorted(dev.glob(pattern))
        if stat.S_ISCHR(path.stat().st_mode)
    ]
    folder = next((f for f in folders if (f / "libcuda.so.1").exists()), None)
    if folder is None or not any(path.name[6:].isdecimal() for path in devices):
        seen = ", ".join(path.name for path in devices) or "none"
        raise CannotHere(
            "run.no-gpu",
            "this machine has no NVIDIA GPU that a container could use",
            why=f"device nodes: {seen}; libcuda.so.1: "
            + (str(folder) if folder else "in none of " + ", ".join(map(str, folders))),
            fix="run on a machine with a GPU and its driver",
        )
    libraries = {path.name: path for p in _LIBRARIES for path in sorted(folder.glob(p))}
    return Gpu(tuple(devices), tuple(libraries.values()))
