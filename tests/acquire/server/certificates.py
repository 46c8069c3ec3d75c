"""Certificates made for one run of the tests: a good one, and those that a client must not accept."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KINDS = ("good", "expired", "untrusted", "other_name")
ADDRESSES = tuple(ipaddress.ip_address(f"127.0.0.{number}") for number in range(1, 255))
NAMES = ("localhost", "*.example.com")
DAY = timedelta(days=1)


class Certificates:
    """A certificate authority and what it signed. Clients trust `authority`, a PEM file, and must say so themselves:
    by SSL_CERT_FILE in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "authority.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        now = datetime.now(UTC)
        root = (
            _builder(self._name, self._name, self._key.public_key(), now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def contexts(self) -> dict[str, ssl.SSLContext]:
        """A server's context by kind of certificate."""
        return {kind: self._context(kind) for kind in KINDS}

    def _context(self, kind: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        end = now - timedelta(hours=1) if kind == "expired" else now + DAY
        names: list[x509.GeneralName] = [x509.DNSName("elsewhere.example.com")]
        if kind != "other_name":
            names = [
                *map(x509.DNSName, NAMES),
                *map(x509.IPAddress, ADDRESSES),
                x509.IPAddress(ipaddress.ip_address("::1")),
            ]
        trusted = kind != "untrusted"
        signer = self._key if trusted else ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(kind), self._name if trusted else _name("stranger"), key.public_key(), now - DAY, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .sign(signer, hashes.SHA256())
        )
        path = self.folder / f"{kind}.pem"
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(private + certificate.public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )
