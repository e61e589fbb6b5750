"""Manifests, blobs, tags and referrers over HTTP: bytes stay bytes, and nothing is believed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kiln.canonical import Digest, digest
from kiln.errors import JudgedBad, KilnError, Unavailable
from kiln.image.oci import INDEX, MANIFEST
from kiln.registry.model import DOCKER_INDEX, DOCKER_MANIFEST, Manifest
from tests.helpers.fake_registry import FakeRegistry, Reply, Request, client, error, sha

DATA = bytes(range(256)) * 12_000
BLOB = digest(DATA)
# Odd blanks, an odd order of keys and a line's end: R2's shape.
RAW = (
    b'{ "schemaVersion":2,\n\t"mediaType":"%s",  "layers":[],"config":\n{"size":2,'
    % (MANIFEST.encode())
    + b'"mediaType":"application/vnd.oci.empty.v1+json","digest":"%s"} }\n' % sha(b"{}").encode()
)
ODD = Manifest(RAW, MANIFEST)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        registry.put_blob("team/kiln", DATA)
        registry.put_blob("team/kiln", b"{}")
        yield registry


def code(function: object, *arguments: object) -> str:
    assert callable(function)
    with pytest.raises(KilnError) as caught:
        function(*arguments)
    return caught.value.code


# ---- manifests -------------------------------------------------------------------------


def test_r2_a_manifest_goes_through_untouched(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.write_manifest(ODD, "v1")
    assert fake.manifests["team/kiln", "v1"] == (RAW, MANIFEST)
    assert registry.read_manifest("v1") == ODD
    assert registry.read_manifest(str(ODD.digest)).data == RAW
    assert registry.resolve("v1") == ODD.digest
    assert registry.resolve("v2") is None


def test_r2_a_registry_that_writes_it_anew_is_found_out(fake: FakeRegistry) -> None:
    again = json.dumps(json.loads(RAW)).encode()
    headers = {"Content-Type": MANIFEST}

    def anew(request: Request) -> Reply:
        fake.manifests["team/kiln", str(ODD.digest)] = again, MANIFEST
        return Reply(201, headers)

    fake.on("PUT", "/manifests/", anew)
    with pytest.raises(JudgedBad) as caught:
        client(fake).write_manifest(ODD)
    assert caught.value.code == "registry.digest-mismatch"
    assert caught.value.exit_code == 1


def test_r1_a_lie_about_the_digest_is_found_out_even_after_201(fake: FakeRegistry) -> None:
    registry = client(fake)
    other = {"Docker-Content-Digest": "sha256:" + "0" * 64}
    fake.on("PUT", "/manifests/", Reply(201, other))
    assert code(registry.write_manifest, ODD) == "registry.digest-mismatch"
    fake.on("PUT", "/manifests/", Reply(201))
    assert code(registry.write_manifest, ODD) == "registry.not-found", "it took it and lost it"
    registry.write_manifest(ODD, "v1")
    fake.on("GET", "/manifests/", Reply(200, {"Content-Type": MANIFEST, **other}, RAW))
    assert code(registry.read_manifest, "v1") == "registry.digest-mismatch"
    fake.on("GET", "/manifests/", Reply(200, {"Content-Type": MANIFEST}, RAW + b" "))
    assert code(registry.read_manifest, str(ODD.digest)) == "registry.digest-mismatch"


def test_a_refused_digest(fake: FakeRegistry) -> None:
    fake.on("PUT", "/manifests/", error(400, "DIGEST_INVALID", "no"))
    assert code(client(fake).write_manifest, ODD) == "registry.digest-refused"


def test_a_tag_that_another_writer_took(fake: FakeRegistry) -> None:
    registry = client(fake)

    def taken(request: Request) -> Reply:
        fake.manifests["team/kiln", str(ODD.digest)] = RAW, MANIFEST
        fake.manifests["team/kiln", "v1"] = b'{"schemaVersion": 2}', MANIFEST
        return Reply(201)

    fake.on("PUT", "/manifests/v1", taken)
    assert code(registry.write_manifest, ODD, "v1") == "registry.tag-moved"


def test_r6_a_manifest_before_its_blobs(fake: FakeRegistry) -> None:
    del fake.blobs["team/kiln", sha(b"{}")]
    with pytest.raises(Unavailable) as caught:
        client(fake).write_manifest(ODD)
    assert caught.value.code == "registry.blob-unknown"
    assert caught.value.exit_code == 3


def test_a_head_without_a_digest_is_no_reason_to_believe(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.write_manifest(ODD, "v1")
    fake.on("HEAD", "/manifests/", Reply(200), times=None)
    assert registry.resolve("v1") == ODD.digest
    fake.on("GET", "/manifests/", Reply(200, {"Content-Type": MANIFEST}, b"{}"))
    assert code(registry.resolve, str(ODD.digest)) == "registry.digest-mismatch"


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (MANIFEST, b"{", "registry.bad-manifest"),
        (MANIFEST, b"[]", "registry.bad-manifest"),
        (MANIFEST, b'{"schemaVersion": 1}', "registry.bad-manifest"),
        (MANIFEST, b'{"schemaVersion": 2, "layers": 5}', "registry.bad-manifest"),
        (
            MANIFEST,
            b'{"schemaVersion": 2, "mediaType": "%s"}' % INDEX.encode(),
            "registry.media-type",
        ),
        ("application/json", b'{"schemaVersion": 2}', "registry.media-type"),
        ("", b'{"schemaVersion": 2}', "registry.media-type"),
        (
            "application/vnd.docker.distribution.manifest.v1+prettyjws",
            b'{"schemaVersion": 2}',
            "registry.media-type",
        ),
        (
            MANIFEST,
            b'{"schemaVersion": 2, "config": {"mediaType": "x", "digest": "../x", "size": 1}}',
            "registry.bad-manifest",
        ),
    ],
)
def test_what_is_no_manifest(fake: FakeRegistry, kind: str, body: bytes, expected: str) -> None:
    fake.on("GET", "/manifests/", Reply(200, {"Content-Type": kind}, body))
    with pytest.raises(JudgedBad) as caught:
        client(fake).read_manifest("v1")
    assert caught.value.code == expected


@pytest.mark.parametrize("kind", [MANIFEST, DOCKER_MANIFEST, INDEX, DOCKER_INDEX])
def test_all_kinds_of_manifests(fake: FakeRegistry, kind: str) -> None:
    manifest = Manifest(b'{"schemaVersion": 2, "mediaType": "%s"}' % kind.encode(), kind)
    registry = client(fake)
    registry.write_manifest(manifest, "v1")
    assert registry.read_manifest("v1").media_type == kind


def test_names_are_checked_before_they_are_part_of_an_address(fake: FakeRegistry) -> None:
    registry = client(fake)
    for function in (registry.resolve, registry.read_manifest, registry.delete):
        assert code(function, "../blobs/x") == "registry.bad-tag"
    assert code(registry.write_manifest, ODD, "a/b") == "registry.bad-tag"
    assert code(registry.mount, BLOB, "../x") == "registry.bad-name"
    assert fake.seen == []


# ---- blobs -----------------------------------------------------------------------------


def test_a_blob(fake: FakeRegistry) -> None:
    registry = client(fake)
    assert registry.has_blob(BLOB)
    assert b"".join(registry.read_blob(BLOB)) == DATA
    other = Digest("0" * 64, 5)
    assert not registry.has_blob(other)
    assert code(list, registry.read_blob(other)) == "registry.not-found"


def test_an_empty_blob(fake: FakeRegistry) -> None:
    fake.put_blob("team/kiln", b"")
    assert b"".join(client(fake).read_blob(digest(b""))) == b""


def test_another_size_is_found_out_by_head_and_by_get(fake: FakeRegistry) -> None:
    registry = client(fake)
    for wrong in (Digest(BLOB.sha256, BLOB.size - 1), Digest(BLOB.sha256, BLOB.size + 1)):
        assert code(registry.has_blob, wrong) == "registry.wrong-size"
        assert code(list, registry.read_blob(wrong)) == "registry.wrong-size"


def test_other_bytes_are_found_out_at_the_end(fake: FakeRegistry) -> None:
    fake.blobs["team/kiln", str(BLOB)] = DATA[:-1] + b"x"
    with pytest.raises(JudgedBad) as caught:
        list(client(fake).read_blob(BLOB))
    assert caught.value.code == "registry.digest-mismatch"


def test_a_body_without_end_is_left_at_its_size(fake: FakeRegistry) -> None:
    fake.on("GET", "/blobs/", Reply(200, {}, DATA + b"x" * 5_000_000))
    taken: list[bytes] = []
    with pytest.raises(JudgedBad) as caught:
        taken.extend(client(fake).read_blob(BLOB))
    assert caught.value.code == "registry.wrong-size"
    assert sum(map(len, taken)) <= BLOB.size


def test_a_cut_body_goes_on_where_it_ended(fake: FakeRegistry) -> None:
    fake.on("GET", "/blobs/", Reply(200, {}, DATA, cut=1_500_000))
    assert b"".join(client(fake).read_blob(BLOB)) == DATA
    ranges = [s.headers.get("range", "") for s in fake.seen]
    assert len(ranges) == 2
    assert ranges[1].startswith("bytes=")
    assert 0 < int(ranges[1][6:-1]) <= 1_500_000


def test_a_server_without_ranges_sends_it_all_again(fake: FakeRegistry) -> None:
    fake.on("GET", "/blobs/", Reply(200, {}, DATA, cut=1_500_000))
    fake.on("GET", "/blobs/", Reply(200, {}, DATA))
    assert b"".join(client(fake).read_blob(BLOB)) == DATA


def test_a_wrong_range_is_not_taken(fake: FakeRegistry) -> None:
    fake.on("GET", "/blobs/", Reply(200, {}, DATA, cut=1_500_000))
    wrong = {"Content-Range": f"bytes 5-{BLOB.size - 1}/{BLOB.size}"}
    fake.on("GET", "/blobs/", Reply(206, wrong, DATA[5:]))
    assert code(list, client(fake).read_blob(BLOB)) == "registry.bad-answer"


def test_a_body_that_is_cut_each_time_is_given_up(fake: FakeRegistry) -> None:
    fake.on("GET", "/blobs/", Reply(200, {}, DATA, cut=1000), times=None)
    with pytest.raises(Unavailable) as caught:
        list(client(fake).read_blob(BLOB))
    assert caught.value.code in ("registry.unreachable", "registry.cut")
    assert fake.count("GET") == 3


# ---- tags and deleting -----------------------------------------------------------------


def test_all_pages_of_tags(fake: FakeRegistry) -> None:
    registry = client(fake)
    assert code(registry.tags) == "registry.not-found"
    names = ["a", "b", "c", "d", "latest"]
    for name in names:
        fake.manifests["team/kiln", name] = RAW, MANIFEST
    assert registry.tags() == names
    assert fake.count("GET", "/tags/") == 4


@pytest.mark.parametrize(
    "link",
    [
        '</v2/team/kiln/tags/list?n=1000>; rel="next"',
        '<http://other.example/v2/x>; rel="next"',
        '</other>; rel="next"',
        '<>; rel="next"',
    ],
)
def test_a_list_that_leads_nowhere(fake: FakeRegistry, link: str) -> None:
    fake.on("GET", "/tags/", Reply(200, {"Link": link}, b'{"tags": ["a"]}'), times=None)
    assert code(client(fake).tags) == "registry.bad-answer"
    assert fake.count("GET") == 1


def test_deleting(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.write_manifest(ODD, "v1")
    registry.write_manifest(ODD, "v2")
    registry.delete("v1")
    assert registry.tags() == ["v2"]
    registry.delete(str(ODD.digest))
    assert registry.resolve("v2") is None
    assert code(registry.delete, "v2") == "registry.not-found"
    fake.on("DELETE", "/", error(405, "UNSUPPORTED"))
    with pytest.raises(Unavailable) as caught:
        registry.delete("v2")
    assert caught.value.code == "registry.unsupported"
    assert "storage.delete.enabled" in caught.value.fix


# ---- referrers -------------------------------------------------------------------------


def statement(kind: str, note: str) -> Manifest:
    """A manifest that speaks of ODD."""
    subject = {"mediaType": MANIFEST, "digest": str(ODD.digest), "size": ODD.digest.size}
    empty = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": sha(b"{}"), "size": 2}
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": empty,
        "layers": [empty],
        "subject": subject,
        "annotations": {"note": note},
    }
    return Manifest(json.dumps(document).encode(), MANIFEST)


@pytest.mark.parametrize("api", [True, False], ids=["api", "tag"])
def test_referrers_by_the_api_and_by_the_tag_that_stands_in(fake: FakeRegistry, api: bool) -> None:
    fake.referrers = api
    registry = client(fake)
    assert registry.referrers(ODD.digest) == []
    registry.write_manifest(ODD, "v1")
    written = [statement("a/sbom", "1"), statement("a/verdict", "2"), statement("a/sbom", "3")]
    for one in written:
        registry.write_manifest(one)
        registry.write_manifest(one)  # twice is once
    found = registry.referrers(ODD.digest)
    assert [d.digest for d in found] == sorted(str(m.digest) for m in written)
    assert {d.artifact_type for d in found} == {"a/sbom", "a/verdict"}
    assert len(registry.referrers(ODD.digest, "a/sbom")) == 2
    fallback = f"sha256-{ODD.digest.sha256}"
    assert (("team/kiln", fallback) in fake.manifests) is not api
    if not api:
        assert {d.annotations["note"] for d in found} == {"1", "2", "3"}


def test_a_referrers_api_that_is_denied_is_not_taken_for_none(fake: FakeRegistry) -> None:
    fake.on("GET", "/referrers/", error(403, "DENIED"))
    assert code(client(fake).referrers, ODD.digest) == "registry.denied"


def test_a_failing_referrers_api_is_not_taken_for_none(fake: FakeRegistry) -> None:
    fake.on("GET", "/referrers/", Reply(500), times=None)
    assert code(client(fake).referrers, ODD.digest) == "registry.server-error"


def test_another_writer_of_the_fallback_tag(fake: FakeRegistry) -> None:
    """It overwrites the tag right after us, once; our entry is written again."""
    fake.referrers = False
    registry = client(fake)
    registry.write_manifest(ODD)
    theirs = statement("a/theirs", "x")
    entry = theirs.descriptor().as_json()
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).encode()

    def overwritten(request: Request) -> Reply:
        fake.manifests["team/kiln", sha(request.body)] = request.body, INDEX
        fake.manifests["team/kiln", sha(index)] = index, INDEX
        fake.manifests["team/kiln", request.path.rsplit("/", 1)[1]] = index, INDEX
        return Reply(201)

    fake.on("PUT", "/manifests/sha256-", overwritten)
    ours = statement("a/ours", "y")
    registry.write_manifest(ours)
    found = {d.digest for d in registry.referrers(ODD.digest)}
    assert found == {str(ours.digest), str(theirs.digest)}


def test_a_fallback_tag_that_never_keeps_an_entry(fake: FakeRegistry) -> None:
    fake.referrers = False
    registry = client(fake)
    registry.write_manifest(ODD)
    empty = b'{"schemaVersion": 2, "manifests": []}'

    def forgets(request: Request) -> Reply:
        fake.manifests["team/kiln", sha(request.body)] = request.body, INDEX
        fake.manifests["team/kiln", sha(empty)] = empty, INDEX
        fake.manifests["team/kiln", request.path.rsplit("/", 1)[1]] = empty, INDEX
        return Reply(201)

    fake.on("PUT", "/manifests/sha256-", forgets, times=None)
    assert code(registry.write_manifest, statement("a/ours", "y")) == "registry.referrer-lost"
