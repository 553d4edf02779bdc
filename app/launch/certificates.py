"""Certificates and keys for a rehearsal on loopback; a real deployment has those of its own authority."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

DAYS = 2


@dataclass(frozen=True)
class Certificates:
    """The authority's certificate, and the server's with its key."""

    authority: Path
    server: Path
    key: Path


def certificates(folder: Path) -> Certificates:
    """A new authority and a server certificate of it for 127.0.0.1 and localhost, valid for two days."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _signed("fedgeo rehearsal", authority_key, "fedgeo rehearsal", authority_key, [])
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = _signed("localhost", server_key, "fedgeo rehearsal", authority_key, names)
    made.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    made.server.write_bytes(server.public_bytes(Encoding.PEM))
    _secret(made.key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def node_key(path: Path) -> Path:
    """A new key for a SuperNode, as `ssh-keygen -t ecdsa -b 384` makes it; returns the file of its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(path.name + ".pub")
    _secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
) -> x509.Certificate:
    """A certificate for ``names``; an authority's own where there are none."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        usage = dict.fromkeys(
            (
                *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
                *("key_agreement", "encipher_only", "decipher_only"),
            ),
            False,
        )
        builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
    return builder.sign(issuer_key, hashes.SHA256())


def _secret(path: Path, content: bytes) -> None:
    """A file that only its owner may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
