"""How fast wheels become layers: `python -m tests.bench.layers JOBS WHEEL...`.

Each wheel becomes one layer, JOBS at a time, in a fresh store below TMPDIR. Says MB of
tar a second of wall time and of processor time, and the peak of memory. The budget
(docs: 180 MB/s on two cores, under 500 MB) is meant for a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kiln.canonical import Digest
from kiln.graph.action import Context
from kiln.graph.steps import LAYER
from kiln.layer.step import Params, WheelSource, layer_node
from kiln.progress import Silent
from kiln.store import Store
from tests.helpers.wheels import INSTALL


def _tar_size(store: Store, wheel: Path, digest: Digest) -> int:
    node = layer_node("layer", {"w": digest}, Params((WheelSource("w", wheel.name, INSTALL),)))
    context = Context(store, {"w": digest}, node.params, Silent(), store.blobs.tmp)
    meta = json.loads(store.blobs.read(LAYER.run(context)["meta"].sha256))
    return int(meta["tar_size"])


def main(jobs: int, wheels: list[Path]) -> None:
    """Measure once and print one line."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        digests = [store.blobs.put_file(wheel) for wheel in wheels]
        wall, processor = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(jobs) as pool:
            size = sum(
                pool.map(lambda job: _tar_size(store, *job), zip(wheels, digests, strict=True))
            )
        wall, processor = time.monotonic() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    sys.stdout.write(
        f"{size / 1e6:.0f} MB in {wall:.2f} s: {size / 1e6 / wall:.0f} MB/s on "
        f"{os.cpu_count()} cores, {size / 1e6 / processor:.0f} MB/s a core; peak {peak:.0f} MB; "
        f"load {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
