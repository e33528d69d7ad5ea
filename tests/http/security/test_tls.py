"""HTTPS with certificates made here, and real clients."""

import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trustme

from palladio.http.security.tls import make_tls_context
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until
from tests.http.security.limited_server import limited_server

PASSWORD = "open sesame"


class Files:
    """A certificate authority, and files of a certificate that it has signed."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.ca = self.write("ca.pem", self.authority.cert_pem.bytes())
        self.issue()

    def issue(self) -> None:
        """Writes a new certificate and its key in the places of the ones before."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.serial = issued.cert_chain_pems[0].bytes()
        self.cert = self.write("cert.pem", self.serial)
        self.key = self.write("key.pem", issued.private_key_pem.bytes())
        self.both = self.write("both.pem", issued.private_key_and_cert_chain_pem.bytes())

    def encrypted_key(self) -> str:
        from cryptography.hazmat.primitives import serialization

        key = serialization.load_pem_private_key(Path(self.key).read_bytes(), None)
        form = serialization.PrivateFormat.PKCS8
        protection = serialization.BestAvailableEncryption(PASSWORD.encode())
        return self.write("encrypted.pem", key.private_bytes(serialization.Encoding.PEM, form, protection))

    def write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.replace(new, path)
        return str(path)

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def served_certificate(address: tuple[str, int]) -> bytes:
    return ssl.get_server_certificate(address).encode()


@pytest.mark.parametrize("form", ["two files", "one file", "encrypted"])
def test_https(engine: FakeEngine, files: Files, form: str) -> None:
    flags = {
        "two files": {"ssl_certfile": files.cert, "ssl_keyfile": files.key},
        "one file": {"ssl_certfile": files.both},
        "encrypted": {
            "ssl_certfile": files.cert,
            "ssl_keyfile": files.encrypted_key(),
            "ssl_keyfile_password": PASSWORD,
        },
    }[form]
    with limited_server(engine, **flags) as (host, port):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        answer = httpx.post(f"https://{host}:{port}/v1/chat/completions", json=body, verify=files.client(), timeout=20)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://{host}:{port}/version")
        with pytest.raises(httpx.TransportError):  # HTTP is not spoken beside it
            httpx.get(f"http://{host}:{port}/version")


def test_clients_must_bring_a_certificate_where_that_is_asked_for(engine: FakeEngine, files: Files) -> None:
    flags = {"ssl_certfile": files.cert, "ssl_keyfile": files.key, "ssl_ca_certs": files.ca}
    with limited_server(engine, **flags) as (host, port):
        url = f"https://{host}:{port}/version"
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=files.client())
        stranger, known = files.client(), files.client()
        trustme.CA().issue_cert("someone@example.org").configure_cert(stranger)
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=stranger)
        files.authority.issue_cert("someone@example.org").configure_cert(known)
        assert httpx.get(url, verify=known).status_code == 200


def test_a_renewed_certificate_is_used_without_a_restart(
    engine: FakeEngine, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    flags = {"ssl_certfile": files.cert, "ssl_keyfile": files.key, "enable_ssl_refresh": True}
    caplog.set_level(logging.INFO)
    with limited_server(engine, **flags) as address:
        first = served_certificate(address)
        assert first.strip() == files.serial.strip()
        files.issue()
        wait_until(lambda: served_certificate(address).strip() == files.serial.strip())
        good = files.serial
        other = trustme.CA().issue_cert("localhost")
        files.write("key.pem", other.private_key_pem.bytes())  # half of a renewal: the key does not fit
        wait_until(lambda: bool(served_certificate(address)) and "does not match the certificate" in caplog.text)
        assert served_certificate(address).strip() == good.strip()
        url = f"https://{address[0]}:{address[1]}/version"
        assert httpx.get(url, verify=files.client()).status_code == 200


def test_without_the_flag_the_certificate_stays(engine: FakeEngine, files: Files) -> None:
    with limited_server(engine, ssl_certfile=files.cert, ssl_keyfile=files.key) as address:
        first = files.serial
        files.issue()
        time.sleep(1.2)  # the interval in which files are looked at
        assert served_certificate(address).strip() == first.strip()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (lambda f: {"ssl_certfile": "/none.pem"}, "cannot read --ssl-certfile /none.pem: No such file"),
        (lambda f: {"ssl_certfile": f.cert, "ssl_keyfile": "/none.pem"}, "cannot read --ssl-keyfile /none.pem"),
        (lambda f: {"ssl_certfile": f.cert, "ssl_keyfile": str(f.folder)}, "cannot read --ssl-keyfile .*: Is a dir"),
        (lambda f: {"ssl_certfile": f.key, "ssl_keyfile": f.key}, "no PEM certificate in --ssl-certfile .*key.pem"),
        (lambda f: {"ssl_certfile": f.cert}, "no PEM private key in --ssl-certfile .*cert.pem"),
        (lambda f: {"ssl_certfile": f.cert, "ssl_keyfile": f.cert}, "no PEM private key in --ssl-keyfile .*cert.pem"),
        (
            lambda f: {
                "ssl_certfile": f.cert,
                "ssl_keyfile": f.write("other.pem", trustme.CA().issue_cert("x").private_key_pem.bytes()),
            },
            "--ssl-keyfile .*other.pem does not match the certificate in --ssl-certfile",
        ),
        (lambda f: {"ssl_certfile": f.cert, "ssl_keyfile": f.encrypted_key()}, "is encrypted: set --ssl-keyfile-pass"),
        (
            lambda f: {"ssl_certfile": f.cert, "ssl_keyfile": f.encrypted_key(), "ssl_keyfile_password": "wrong"},
            "--ssl-keyfile-password is wrong for --ssl-keyfile .*encrypted.pem$",
        ),
        (lambda f: {"ssl_certfile": f.both, "ssl_ca_certs": "/none.pem"}, "cannot read --ssl-ca-certs /none.pem"),
        (lambda f: {"ssl_certfile": f.both, "ssl_ca_certs": f.key}, "no PEM certificate in --ssl-ca-certs"),
        (lambda f: {"ssl_keyfile": f.key}, "--ssl-keyfile needs --ssl-certfile"),
        (lambda f: {"ssl_keyfile_password": "x"}, "--ssl-keyfile-password needs --ssl-certfile"),
        (lambda f: {"ssl_ca_certs": f.ca}, "--ssl-ca-certs needs --ssl-certfile"),
        (lambda f: {"enable_ssl_refresh": True}, "--enable-ssl-refresh needs --ssl-certfile"),
    ],
)
def test_what_is_wrong_is_named(files: Files, flags: Callable[[Files], dict], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_tls_context(HttpConfig(**flags(files)))


def test_no_certificate_is_http() -> None:
    assert make_tls_context(HttpConfig()) is None
