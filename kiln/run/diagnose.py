"""Whose fault a failed start is: the machine's where the log says so, else the image's.

The machine's fault is CannotHere (exit 4): no verdict on the image, and never a pass.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from kiln.errors import CannotHere, JudgedBad, KilnError

LAST_WORDS = 30  # lines of the log in an error


@dataclass(frozen=True)
class _Cause:
    """A text of CUDA, torch, NCCL or vLLM that speaks of the machine."""

    code: str
    pattern: re.Pattern[str]
    what: str
    fix: str


_DRIVER_FIX = "install a newer NVIDIA driver, or take an image for this driver's CUDA version"
_GPU_FIX = "free the GPU of other processes (nvidia-smi shows them), then try again"


def _cause(code: str, pattern: str, what: str, fix: str) -> _Cause:
    return _Cause(code, re.compile(pattern, re.IGNORECASE), what, fix)


_CAUSES = (
    _cause(
        "run.memory-profile",
        r"error in memory profiling|initial free memory .*current free memory",
        "the GPU's free memory changed while vLLM measured it: another process uses it",
        _GPU_FIX,
    ),
    _cause(
        "run.gpu-memory",
        r"cuda out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|free memory on device .* is less than desired",
        "the GPU ran out of memory",
        _GPU_FIX,
    ),
    _cause(
        "run.shared-memory",
        r"bus error|no space left on device.*/dev/shm|/dev/shm.*no space left"
        r"|error while creating shared memory segment",
        "shared memory ran out",
        "raise the launch's shm size",
    ),
    _cause(
        "run.nccl",
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|unhandled (?:system|cuda) error.*nccl",
        "NCCL cannot connect the GPUs of this machine",
        "raise the launch's shm size; NCCL_DEBUG=INFO in its env says more",
    ),
    _cause(
        "run.driver",
        r"error 803|system has unsupported display driver|cudaErrorSystemDriverMismatch",
        "the NVIDIA driver and its libraries have different versions (error 803)",
        "make libcuda in the container the host driver's own; unset LD_LIBRARY_PATH to "
        "CUDA's compat folder",
    ),
    _cause(
        "run.driver",
        r"error 804|forward compatibility was attempted on non supported|"
        r"cudaErrorCompatNotSupportedOnDevice",
        "this GPU does not take CUDA's forward compatibility (error 804)",
        _DRIVER_FIX,
    ),
    _cause(
        "run.driver",
        r"driver version is insufficient|nvidia driver on your system is too old"
        r"|cudaErrorInsufficientDriver",
        "the NVIDIA driver is too old for the image's CUDA",
        _DRIVER_FIX,
    ),
    _cause(
        "run.no-gpu",
        r"found no nvidia driver|no cuda-capable device|no cuda gpus are available"
        r"|libcuda\.so\.1: cannot open shared object file",
        "no GPU can be seen from the container",
        "run on a machine with a GPU, or give the container its GPU",
    ),
)

_CHILD_ERROR = re.compile(
    r"^\((?P<who>EngineCore|Worker)\S* pid=\d+\) ERROR [^\]]*\] "
    r"(?P<error>\w[\w.]*(Error|Exception)\b.*)$",
    re.MULTILINE,
)
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def died(status: int | None, log: str, seconds: float) -> KilnError:
    """The error for a server that exited while it started."""
    ending = f"it exited after {seconds:.0f} s with {in_words(status)}"
    if found := _environment(log, ending):
        return found
    if status == 128 + signal.SIGKILL:
        return CannotHere(
            "run.killed",
            "something on this machine killed the server while it started",
            why=_why(f"{ending}, and Kiln did not send it: most often memory ran out", log),
            fix="free some memory or choose a smaller model; `dmesg` tells who killed it",
        )
    return JudgedBad("run.died", "the server died while it started", why=_why(ending, log))


def too_late(seen: str, log: str, seconds: float) -> KilnError:
    """The error for a server that was not ready in time. seen: the last attempt's end."""
    ending = f"no completion within {seconds:g} s; last: {seen}"
    return _environment(log, ending) or JudgedBad(
        "run.start-timeout",
        "the server did not get ready in time",
        why=_why(ending, log),
        fix="if it only is slow here, raise start_seconds of the preset",
    )


def in_words(status: int | None) -> str:
    """An exit status for people."""
    if status is None:
        return "an unknown status"
    if status > 128:
        try:
            return f"status {status} ({signal.Signals(status - 128).name})"
        except ValueError:
            pass
    return f"status {status}"


def _environment(log: str, ending: str) -> CannotHere | None:
    for cause in _CAUSES:
        if match := cause.pattern.search(log):
            start = log.rfind("\n", 0, match.start()) + 1
            line = log[start:].partition("\n")[0].strip()
            found = ""
            if cause.code == "run.driver" and _DRIVER_FILE.exists():
                found = f"\nfound: {_DRIVER_FILE.read_text().partition(chr(10))[0]}"
            return CannotHere(
                cause.code,
                cause.what,
                why=_why(f"{ending}\nthe log says: {line[:500]}{found}", log),
                fix=cause.fix,
            )
    return None


def _why(ending: str, log: str) -> str:
    words = "\n".join(log.strip().splitlines()[-LAST_WORDS:])
    # vLLM's last words are the API server's ("see root cause above"); what ended the
    # engine is the last line of the first traceback that a child process logged.
    cause = _CHILD_ERROR.search(log)
    said = f"\n{cause['who']}: {cause['error'][:500]}" if cause else ""
    return f"{ending}{said}\nlast lines of its log:\n{words or '(nothing)'}"
