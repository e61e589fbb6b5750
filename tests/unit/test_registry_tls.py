"""TLS: whom is trusted, and that nothing goes down to plain http by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln.canonical import digest
from kiln.errors import KilnError, Unavailable
from kiln.fetch.http import Access, Patience
from kiln.registry.docker_config import Login
from kiln.registry.http import HttpRegistry
from kiln.registry.names import Repository, parse_name
from tests.helpers.fake_registry import PASSWORD, USER, FakeRegistry, Reply, Request, source

DATA = b"a blob"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"]
    command += ["subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return both


@pytest.fixture
def fake(certificate: Path) -> Iterator[FakeRegistry]:
    with FakeRegistry("basic", certificate=certificate) as registry:
        yield registry


def client(fake: FakeRegistry, scheme: str = "https", ca: Path | None = None) -> HttpRegistry:
    port = fake.host.rpartition(":")[2]
    place = parse_name(f"{scheme}://localhost:{port}/kiln").place
    assert isinstance(place, Repository)
    return HttpRegistry(
        place,
        login=lambda: Login(USER, PASSWORD),
        access=Access(ca=str(ca.with_name("cert.pem")) if ca else "", read=10),
        patience=Patience(attempts=2, delay=0.01),
    )


def test_a_trusted_certificate(fake: FakeRegistry, certificate: Path) -> None:
    registry = client(fake, ca=certificate)
    registry.write_blob(digest(DATA), source(DATA), lambda _: None)
    assert b"".join(registry.read_blob(digest(DATA))) == DATA


def test_ssl_cert_file(
    fake: FakeRegistry, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("cert.pem")))
    assert not client(fake).has_blob(digest(DATA))


def test_a_certificate_that_nobody_trusts(fake: FakeRegistry) -> None:
    with pytest.raises(Unavailable) as caught:
        client(fake).has_blob(digest(DATA))
    assert caught.value.code == "registry.untrusted"
    assert "SSL_CERT_FILE" in caught.value.fix
    assert fake.seen == []


def test_a_certificate_of_another_host(certificate: Path) -> None:
    with FakeRegistry(certificate=certificate) as fake:
        place = parse_name(f"https://{fake.host}/kiln").place
        assert isinstance(place, Repository)
        access = Access(ca=str(certificate.with_name("cert.pem")))
        with pytest.raises(Unavailable) as caught:
            HttpRegistry(place, access=access).has_blob(digest(DATA))
    assert caught.value.code == "registry.untrusted"


def test_https_to_a_plain_server_and_plain_to_https(fake: FakeRegistry) -> None:
    with FakeRegistry() as plain, pytest.raises(Unavailable) as caught:
        client(plain).has_blob(digest(DATA))
    assert caught.value.code == "registry.untrusted"
    assert "without TLS" in caught.value.fix
    with pytest.raises(KilnError) as other:
        client(fake, "http").has_blob(digest(DATA))
    assert other.value.exit_code == 3


def test_a_registry_that_does_not_know_of_its_tls(fake: FakeRegistry, certificate: Path) -> None:
    def begin(request: Request) -> Reply | None:
        if not request.authorization:
            return None
        fake.uploads["u"] = bytearray()
        port = fake.host.rpartition(":")[2]
        return Reply(202, {"Location": f"http://localhost:{port}/v2/kiln/blobs/uploads/u"})

    fake.on("POST", "/uploads/", begin, times=None)
    client(fake, ca=certificate).write_blob(digest(DATA), source(DATA), lambda _: None)
    assert fake.blobs["kiln", str(digest(DATA))] == DATA


def test_a_redirect_down_to_plain_http_is_refused(fake: FakeRegistry, certificate: Path) -> None:
    with FakeRegistry() as plain:
        target = f"http://{plain.host}/x"
        fake.on("HEAD", "/blobs/", lambda r: Reply(307, {"Location": target}) if r.authorization
                else None, times=None)  # fmt: skip
        with pytest.raises(Unavailable) as caught:
            client(fake, ca=certificate).has_blob(digest(DATA))
        assert caught.value.code == "registry.redirect"
        assert plain.seen == []


def test_a_realm_on_plain_http_gets_no_password(fake: FakeRegistry, certificate: Path) -> None:
    with FakeRegistry() as plain:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{plain.host}/token"'}
        fake.on("HEAD", "/blobs/", Reply(401, challenge), times=None)
        with pytest.raises(Unavailable) as caught:
            client(fake, ca=certificate).has_blob(digest(DATA))
        assert caught.value.code == "registry.redirect"
        assert plain.seen == []
