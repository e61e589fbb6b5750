"""What the figures were measured on, without names of the machine or of its user."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe(folder: Path) -> list[str]:
    """Processor, memory, kernel, Python, the file system of `folder`, and the load now."""
    processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return [
        f"{len(os.sched_getaffinity(0))} cores of {processor[1] if processor else 'unknown'}",
        f"{memory:.0f} GB of memory",
        file_system(folder),
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        f"load {os.getloadavg()[0]:.1f} at the start",
    ]


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, from /proc/mounts (proc(5))."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, target, found, *_ = line.split()
        inside = folder.resolve().is_relative_to(target)
        if inside and len(target) >= len(best):
            best, kind = target, found
    return kind
