"""All locked files of a build into the store: in parallel, largest first, all failures at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from kiln.errors import BadInput, CannotHere, KilnError, Unavailable, raise_problems
from kiln.fetch.debian import candidates
from kiln.fetch.download import Downloader
from kiln.fetch.failures import Stopped
from kiln.fetch.http import Http
from kiln.fetch.index import Index
from kiln.fetch.settings import Settings
from kiln.graph.action import Locked
from kiln.lock.model import Deb, Suite, Wheel
from kiln.progress import Reporter, Task, human
from kiln.store import Store

JOBS = 8


class StoreFetcher:
    """Brings locked wheels, sdists and packages into a store (kiln.graph.build.Fetcher).

    named: logical index names -> URL (pins.yaml). suites: of the lock; a package's old
    versions are looked for in archives of snapshots by its suite's date.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        reporter: Reporter,
        *,
        named: Mapping[str, str] = {},
        suites: Mapping[str, Suite] = {},
        http: Http | None = None,
        jobs: int = JOBS,
    ) -> None:
        self._store, self._reporter, self._jobs, self._suites = store, reporter, jobs, suites
        self._http = http or Http(settings.access)
        self._index = Index(self._http, settings, named)
        self._downloader = Downloader(store, self._http, reporter)

    def fetch(self, wanted: Sequence[Locked]) -> None:
        """Have all of these in the store, verified; what is there already is not asked for.

        Raises every failure at once, after all other files have been fetched; a full disk
        ends it early. A partial file stays and is resumed, also after Ctrl-C.
        """
        missing = {f.digest: f for f in wanted if not self._store.blobs.has(f.digest)}
        # The largest first, so that it does not run alone at the end.
        files = sorted(missing.values(), key=lambda f: (-f.digest.size, f.name))
        if not files:
            return
        total = sum(file.digest.size for file in files)
        self._check_space(files)
        noun = "file" if len(files) == 1 else "files"
        with self._reporter.task(f"fetch {len(files)} {noun}", total) as task:
            raise_problems(self._all(files, _Shared(task)))

    def _all(self, files: Sequence[Locked], task: Task) -> list[KilnError]:
        errors: list[tuple[str, KilnError]] = []
        stopped: Stopped | None = None
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="fetch") as pool:
            todo: dict[Future[None], Locked] = {
                pool.submit(self._one, file, task): file for file in files
            }
            try:
                running = set(todo)
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        try:
                            future.result()
                        except KilnError as error:
                            errors.append((todo[future].name, error))
                            if isinstance(error, CannotHere):
                                self._http.halt()
                        except Stopped as error:
                            stopped = error
            except BaseException:
                self._http.halt()
                raise
        if stopped is not None and not errors:
            raise stopped  # otherwise what made it stop is among the errors
        return [error for _, error in sorted(errors, key=lambda pair: pair[0])]

    def _one(self, file: Locked, task: Task) -> None:
        if self._http.stop.is_set():
            raise Stopped
        asked: list[Unavailable] = []
        self._downloader.fetch(file.digest, file.name, self._urls(file, asked), task, asked)

    def _urls(self, file: Locked, asked: list[Unavailable]) -> Iterator[str]:
        source = file.source
        if isinstance(source, Wheel):
            return self._index.find(source.name, source.file, source.sha256, source.index, asked)
        if isinstance(source, Deb):
            if source.suite not in self._suites:
                raise BadInput(
                    "fetch.unknown-suite",
                    f"the lock does not say which {source.suite} {file.name} is of",
                    fix="run `kiln lock` again",
                )
            return iter(candidates(source, self._suites[source.suite]))
        raise TypeError(f"{file.name}: nobody knows where to fetch a {type(source).__name__}")

    def _check_space(self, files: Sequence[Locked]) -> None:
        disk = os.statvfs(self._store.partial)
        free = disk.f_bavail * disk.f_frsize
        needed = sum(file.digest.size for file in files)
        for file in files:
            part = self._store.partial / file.digest.sha256
            needed -= part.stat().st_size if part.is_file() else 0
        if needed > free:
            raise CannotHere(
                "store.no-space",
                "no space for the files to fetch",
                where=str(self._store.root),
                why=f"they have {human(needed)}, and {human(free)} are free",
                fix="free some space, or point KILN_STORE at a larger disk",
            )


class _Shared:
    """A task that several threads may advance."""

    def __init__(self, task: Task) -> None:
        self._task, self._lock = task, threading.Lock()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._task.advance(amount)
