"""Certificates: what is wrong with them is said, with a remedy that fits a server that is not ours."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import ssl
import threading

import odd_answers
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from small_server import Handler

import workshop
from workshop import batch
from workshop.errors import BadInput, WorkshopError


def certificate(folder, name="127.0.0.1", days=1):
    """Write a certificate that signs itself; return its file, which holds the key, too."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path = folder / f"{name}.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, *private)
    )
    return path


class Answers(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.body()
        self.reply(odd_answers.MODELS if self.path.endswith("/models") else odd_answers.COMPLETION)

    do_POST = do_GET


@pytest.fixture
def serve():
    servers = []

    def start(pem=None) -> str:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        servers.append(server)
        if pem:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(pem)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"https://127.0.0.1:{server.server_port}/v1"

    yield start
    for server in servers:
        server.shutdown()


@pytest.fixture
def ask(tmp_path, workshop_home, monkeypatch):
    """Return two ways to ask a server; both take the address."""
    (tmp_path / "in.txt").write_text("x\n")

    def by_batch(url):
        return batch.run(tmp_path / "in.txt", tmp_path / "out.jsonl", url=url).answered == 1

    def by_client(url):
        monkeypatch.setenv("WORKSHOP_URL", url)
        return workshop.connect().complete("x").choices[0].text == " city"

    return by_batch, by_client


def test_an_authority_that_is_unknown_here_is_named_by_ssl_cert_file(
    serve, ask, tmp_path, monkeypatch
):
    pem = certificate(tmp_path)
    url = serve(pem)
    for way in ask:
        with pytest.raises(WorkshopError) as error:
            way(url)
        remedy = error.value.remedy
        assert "certificate" in error.value.message.lower() and "SSL_CERT_FILE" in remedy
        assert "workshop serve" not in remedy
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    for way in ask:
        assert way(url)


def test_a_certificate_for_another_name_or_time_is_named(serve, ask, tmp_path, monkeypatch):
    for name, days, says in (("gpu.example", 1, "another name"), ("127.0.0.1", -2, "expired")):
        pem = certificate(tmp_path, name, days)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        url = serve(pem)
        for way in ask:
            with pytest.raises(WorkshopError) as error:
                way(url)
            assert says in error.value.remedy


def test_a_server_without_tls_is_to_be_asked_with_http(serve, ask):
    url = serve()
    for way in ask:
        with pytest.raises(WorkshopError) as error:
            way(url)
        assert f"http://127.0.0.1:{url.rpartition(':')[2]}" in error.value.remedy


def test_certificates_that_cannot_be_read_are_one_sentence(serve, ask, tmp_path, monkeypatch):
    path, url = tmp_path / "authority.pem", serve()
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    for content in (None, "no certificate"):
        if content:
            path.write_text(content)
        for way in ask:
            with pytest.raises(BadInput, match="SSL_CERT_FILE"):
                way(url)


def test_a_server_elsewhere_that_is_away_gets_no_remedy_of_ours(ask, workshop_home):
    for way in ask:
        with pytest.raises(WorkshopError) as error:
            way("http://127.0.0.1:9/v1")
        assert "Check the address" in error.value.remedy
