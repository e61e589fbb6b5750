"""Finding a GPU and its driver, and what a container is given of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln.errors import CannotHere
from kiln.run.gpu import find_gpu
from kiln.run.runner import Launch
from kiln.run.spec import config
from tests.unit.test_run_spec import IMAGE


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A /dev and a driver; links to /dev/null are character devices for any user."""
    dev, driver = tmp_path / "dev", tmp_path / "driver"
    dev.mkdir()
    driver.mkdir()
    for name in ("nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (dev / name).symlink_to("/dev/null")
    (dev / "nvidia-modeset").symlink_to("/dev/null")
    (dev / "nvidia1").touch()  # no device
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.1", "libc.so.6", "libnvidia.txt"):
        (driver / name).touch()
    (driver / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    return tmp_path


def test_devices_and_driver(machine: Path) -> None:
    gpu = find_gpu(machine / "dev", (machine / "none", machine / "driver"))
    names = [path.name for path in gpu.devices]
    assert names == ["nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm"]
    assert [path.name for path in gpu.libraries] == [
        "libcuda.so.1", "libcuda.so.580.1", "libnvidia-ml.so.1",
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["devices", "driver", "all"])
def test_no_gpu_is_no_verdict(machine: Path, missing: str) -> None:
    if missing in ("devices", "all"):
        for path in (machine / "dev").glob("nvidia[0-9]*"):
            path.unlink()
    folder = machine / ("none" if missing in ("driver", "all") else "driver")
    with pytest.raises(CannotHere) as caught:
        find_gpu(machine / "dev", (folder,))
    assert caught.value.code == "run.no-gpu"
    assert caught.value.exit_code == 4


def test_a_container_sees_these_devices_and_no_others(machine: Path) -> None:
    gpu = find_gpu(machine / "dev", (machine / "driver",))
    launch = Launch(machine, "kiln-1", env={"LD_LIBRARY_PATH": "/own"}, gpus=True)
    spec: dict[str, Any] = config(IMAGE, launch, Path("/r"), Path("/s"), (1000, 0), gpu)
    assert [d["path"] for d in spec["linux"]["devices"]] == [str(p) for p in gpu.devices]
    first, *rules = spec["linux"]["resources"]["devices"]
    assert first == {"allow": False, "access": "rwm"}
    assert {(r["major"], r["minor"]) for r in rules} == {(1, 3)}  # /dev/null here
    targets = [m["destination"] for m in spec["mounts"]]
    assert targets.index("/usr/local/nvidia") < targets.index(
        "/usr/local/nvidia/lib64/libcuda.so.1"
    )
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/own" in spec["process"]["env"]
    without: dict[str, Any] = config(IMAGE, launch, Path("/r"), Path("/s"), (1000, 0))
    assert "devices" not in without["linux"]
    assert "LD_LIBRARY_PATH=/own" in without["process"]["env"]
