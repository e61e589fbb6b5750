"""A registry over HTTP, by the OCI distribution spec v1.1: distribution, Harbor, zot, ...

Nothing is taken on trust: a manifest is hashed as it came, a blob while it is read, and
what was written is asked for again. A mount that the registry answers with 202 is no mount
but an upload that has begun (R5).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from urllib.parse import quote, urljoin, urlsplit

import msgspec
import urllib3

from kiln.canonical import Digest, is_sha256
from kiln.errors import JudgedBad, Unavailable
from kiln.fetch.failures import Later, Stopped
from kiln.fetch.http import Access, Patience
from kiln.fetch.url import origin
from kiln.registry.auth import Scopes
from kiln.registry.docker_config import Login, find_login
from kiln.registry.failures import MAX_ERROR, Answer
from kiln.registry.model import (
    MANIFESTS,
    Descriptor,
    Manifest,
    Progress,
    Source,
    check_manifest,
    mismatch,
)
from kiln.registry.names import Repository, check_digest, check_path, check_reference, check_tag
from kiln.registry.referrers import list_referrers, record_referrer
from kiln.registry.session import Session
from kiln.registry.upload import CHUNK, Upload
from kiln.registry.wire import Body, Pace, Tries, follow

_ACCEPT = {"Accept": ", ".join(MANIFESTS)}
_PIECE = 1 << 20
_GAIN = 1 << 20  # bytes: an attempt that brought as much does not count as a failed one
_CHANGES = 8  # how often a blob is sent in other pieces at once; then it is a failure
_PAGES = 1000  # of tags; each page has up to as many


class _Tags(msgspec.Struct):
    tags: list[str] | None = None


class HttpRegistry:
    """One repository of a registry (kiln.registry.model.Registry)."""

    def __init__(
        self,
        repository: Repository,
        *,
        login: Callable[[], Login | None] | None = None,
        access: Access | None = None,
        patience: Patience | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self.repository = repository
        self._session = Session(
            repository.base, login or (lambda: find_login(repository.host)), access, patience
        )
        self._url = f"{repository.base}/v2/{repository.name}"
        self._pull: Scopes = (f"repository:{repository.name}:pull",)
        self._push: Scopes = (f"repository:{repository.name}:pull,push",)
        self._chunk: int | None = chunk
        self._begun: dict[Digest, Answer] = {}  # uploads that a refused mount has opened
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """See `Registry`."""
        return str(self.repository)

    def halt(self) -> None:
        """See `Registry`."""
        self._session.wire.halt()

    # ---- blobs -------------------------------------------------------------------------

    def _blob(self, digest: Digest) -> str:
        return f"{self._url}/blobs/{digest}"

    def has_blob(self, digest: Digest) -> bool:
        """See `Registry`. Raises JudgedBad("registry.wrong-size")."""
        answer = self._session.ask("HEAD", self._blob(digest), self._pull, (200, 404))
        if answer.status == 404:
            return False
        _of_a_registry(answer)
        length = answer.headers.get("Content-Length", "")
        if length.isascii() and length.isdecimal() and int(length) != digest.size:
            raise _wrong_size(answer.where, digest, int(length))
        _same_digest(answer, str(digest))
        return True

    def read_blob(self, digest: Digest) -> Iterator[bytes]:
        """See `Registry`. A broken transfer goes on where it ended."""
        hashing, done, tries = hashlib.sha256(), 0, Tries(self._session.wire)
        url = self._blob(digest)
        while True:
            before = done
            try:
                for piece in self._read(url, digest, done):
                    hashing.update(piece)
                    done += len(piece)
                    yield piece
                break
            except Later as error:
                tries.failed(error, gained=done - before >= _GAIN)
        if hashing.hexdigest() != digest.sha256:
            raise mismatch(url, str(digest), f"sha256:{hashing.hexdigest()}")

    def _read(self, url: str, digest: Digest, start: int) -> Iterator[bytes]:
        """The blob from a place on, to its end. Raises Later("registry.cut")."""
        session = self._session
        headers = {"Range": f"bytes={start}-"} if start else {}
        with session.open("GET", url, self._pull, headers) as (response, final):
            wanted = f"bytes {start}-{digest.size - 1}/{digest.size}"
            ranged = response.status == 206
            if ranged and (not start or response.headers.get("Content-Range", "") != wanted):
                raise Unavailable(
                    "registry.bad-answer",
                    "the registry sent another range than was asked for",
                    where=url,
                    why=f"wanted {wanted}",
                )
            if response.status not in (200, 206):
                raise session.refused(session.wire.answer("GET", final, response, MAX_ERROR))
            # Without ranges the beginning comes again; it was hashed before.
            skip, at = (0, start) if ranged else (start, 0)
            pace = Pace(session.wire.patience)
            while piece := self._piece(response, url):
                at += len(piece)
                if at > digest.size:
                    raise _wrong_size(url, digest, at)
                if pace.too_slow(len(piece)):
                    raise _cut(url, at, digest, "it came too slowly")
                fresh = piece[skip:]
                skip -= len(piece) - len(fresh)
                if fresh:
                    yield fresh
            if at < digest.size:
                length = response.headers.get("Content-Length", "")
                if not ranged and length == str(at):
                    raise _wrong_size(url, digest, at)
                raise _cut(url, at, digest, "the connection was closed")

    def _piece(self, response: urllib3.BaseHTTPResponse, url: str) -> bytes:
        if self._session.wire.stop.is_set():
            raise Stopped
        try:
            return response.read1(_PIECE, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._session.wire.lost(url, error) from error

    def write_blob(self, digest: Digest, source: Source, progress: Progress) -> None:
        """See `Registry`. A lost upload begins anew, within patience; then it is looked at."""
        tries, changes = Tries(self._session.wire), 0
        while True:
            with self._lock:
                begun = self._begun.pop(digest, None)
                chunk = self._chunk
            begun = begun or self._session.ask(
                "POST", f"{self._url}/blobs/uploads/", self._push, (202,)
            )
            upload = Upload(self._session, self._push, digest, source, progress, chunk)
            try:
                upload.run(begun)
                break
            except Later as error:
                # What the registry took before it failed to say so is there now.
                if self._there(digest):
                    progress(digest.size)
                    break
                with self._lock:
                    self._chunk = upload.chunk
                changes += upload.chunk != chunk
                if upload.chunk == chunk or changes > _CHANGES:
                    tries.failed(error)
        if not self.has_blob(digest):
            raise _forgotten(self._blob(digest))

    def _there(self, digest: Digest) -> bool:
        try:
            return self.has_blob(digest)
        except Later:
            return False

    def mount(self, digest: Digest, repository: str) -> bool:
        """See `Registry`. repository: its name in the registry, without the host."""
        scopes = (*self._push, f"repository:{check_path(repository)}:pull")
        url = f"{self._url}/blobs/uploads/?mount={digest}&from={quote(repository, safe='')}"
        try:
            answer = self._session.ask("POST", url, scopes, (201, 202))
        except Later:
            raise
        except Unavailable:
            return False  # not offered, or not allowed there: it is sent instead
        if answer.status == 202:
            with self._lock:
                self._begun[digest] = answer
            return False
        return self.has_blob(digest)

    # ---- manifests ---------------------------------------------------------------------

    def _manifest(self, reference: str) -> str:
        return f"{self._url}/manifests/{check_reference(reference)}"

    def resolve(self, reference: str) -> Digest | None:
        """See `Registry`."""
        url = self._manifest(reference)
        answer = self._session.ask("HEAD", url, self._pull, (200, 404), _ACCEPT)
        if answer.status == 404:
            return None
        _of_a_registry(answer)
        length = answer.headers.get("Content-Length", "")
        said = answer.headers.get("Docker-Content-Digest", "")
        if not (
            is_sha256(said.removeprefix("sha256:")) and length.isascii() and length.isdecimal()
        ):
            return self.read_manifest(reference).digest
        if ":" in reference:
            _same_digest(answer, reference)
        return Digest(said.removeprefix("sha256:"), int(length))

    def read_manifest(self, reference: str) -> Manifest:
        """See `Registry`. Raises as `check_manifest` does."""
        url = self._manifest(reference)
        answer = self._session.ask("GET", url, self._pull, (200,), _ACCEPT)
        _of_a_registry(answer)
        manifest = check_manifest(Manifest(answer.data, answer.kind), reference, answer.where)
        _same_digest(answer, str(manifest.digest))
        return manifest

    def write_manifest(self, manifest: Manifest, tag: str = "") -> None:
        """See `Registry`. It is read back; one with a subject is listed with its referrers."""
        own = str(manifest.digest)
        url = self._manifest(check_tag(tag) if tag else own)
        check_manifest(manifest, own, url)
        headers = {"Content-Type": manifest.media_type}
        answer = self._session.ask(
            "PUT", url, self._push, (200, 201, 202), headers, Body.of(manifest.data)
        )
        _same_digest(answer, own)
        found = self.read_manifest(own)
        if tag and (named := self.resolve(tag)) != manifest.digest:
            raise _tag_moved(answer.where, own, str(named or "nothing"))
        if found.media_type != manifest.media_type:
            raise JudgedBad(
                "registry.media-type",
                "the registry keeps the manifest under another media type",
                where=answer.where,
                why=f"written as {manifest.media_type}, read as {found.media_type}",
            )
        subject = manifest.parts().subject
        if subject is not None and answer.headers.get("OCI-Subject") != subject.digest:
            record_referrer(self, subject, manifest.descriptor())

    def delete(self, reference: str) -> None:
        """See `Registry`. Raises Unavailable "registry.unsupported" where it is off."""
        name = self.repository.name
        scopes = (f"repository:{name}:pull,push,delete",)
        self._session.ask("DELETE", self._manifest(reference), scopes, (200, 202, 204))

    def tags(self) -> list[str]:
        """See `Registry`."""
        found: set[str] = set()
        for page in self._pages(f"{self._url}/tags/list?n={_PAGES}"):
            found.update(_decode(page, _Tags).tags or ())
        return sorted(found)

    def referrers(self, digest: Digest, artifact_type: str = "") -> list[Descriptor]:
        """See `Registry`. By the API, or by the tag that stands in for it."""
        check_digest(str(digest))
        return list_referrers(self, digest, artifact_type, self._referrers_api(digest))

    def _referrers_api(self, digest: Digest) -> list[Descriptor] | None:
        """What the API lists; None where the registry has none."""
        found: list[Descriptor] = []
        try:
            for page in self._pages(f"{self._url}/referrers/{digest}"):
                if page.kind not in MANIFESTS:
                    return None  # a 200 of something that knows nothing of this address
                found += Manifest(page.data, page.kind).parts(page.where).manifests
        except Later:
            raise
        except Unavailable as error:
            if error.code in ("registry.not-found", "registry.unsupported", "registry.refused"):
                return None
            raise
        return found

    def _pages(self, url: str) -> Iterator[Answer]:
        """The pages of a list, as their Link headers lead (RFC 8288), each once."""
        seen: set[str] = set()
        while url not in seen and len(seen) < _PAGES:
            seen.add(url)
            answer = self._session.ask("GET", url, self._pull, (200,))
            yield answer
            link = answer.headers.get("Link", "")
            if 'rel="next"' not in link and "rel=next" not in link:
                return
            target = link.partition("<")[2].partition(">")[0]
            url = follow(url, urljoin(url, target), upgrade=True)
            if origin(url) != origin(self._url) or not urlsplit(url).path.startswith("/v2/"):
                break
        raise Unavailable(
            "registry.bad-answer",
            "the registry's list leads nowhere",
            where=answer.where,
            why="its Link header leads to another host, or in a circle",
        )


def _decode(answer: Answer, kind: type[_Tags]) -> _Tags:
    try:
        return msgspec.json.decode(answer.data, type=kind)
    except msgspec.DecodeError as error:
        raise _no_registry(answer, answer.words() or str(error)) from error


def _of_a_registry(answer: Answer) -> None:
    """A page of HTML is no answer of a registry, whatever its status."""
    if answer.kind == "text/html":
        raise _no_registry(answer, answer.words() or "it is a page of HTML")


def _no_registry(answer: Answer, why: str) -> Unavailable:
    return Unavailable(
        "registry.not-a-registry",
        "what answers is no registry",
        where=answer.where,
        why=why,
        fix="check the name; a proxy or a log-in page may stand before the registry",
    )


def _same_digest(answer: Answer, digest: str) -> None:
    """Compare what the registry says the digest is. One of another kind says nothing."""
    said = answer.headers.get("Docker-Content-Digest", "")
    if said.startswith("sha256:") and said != digest:
        raise mismatch(answer.where, digest, f"{said[:80]} (Docker-Content-Digest)")


def _wrong_size(where: str, digest: Digest, found: int) -> JudgedBad:
    return JudgedBad(
        "registry.wrong-size",
        "the registry's blob has another size than the manifest says",
        where=where,
        why=f"{digest}: expected {digest.size} bytes, found {found}"
        + (" or more" if found > digest.size else ""),
        fix="do not use what this registry serves before it is known why",
    )


def _cut(url: str, at: int, digest: Digest, why: str) -> Later:
    return Later(
        "registry.cut",
        "the transfer broke off",
        where=url,
        why=f"{why}, after {at} of {digest.size} bytes",
        fix="try again",
    )


def _tag_moved(where: str, wanted: str, found: str) -> JudgedBad:
    return JudgedBad(
        "registry.tag-moved",
        "the tag names something else right after it was written",
        where=where,
        why=f"expected {wanted}, found {found}",
        fix="see who else writes this tag; then write it again",
    )


def _forgotten(url: str) -> Unavailable:
    return Unavailable(
        "registry.forgotten",
        "the registry took a blob and does not have it",
        where=url,
        why="its answer to the upload was good, and 404 right after it",
        fix="see the registry's own log and disk; then push again",
    )
