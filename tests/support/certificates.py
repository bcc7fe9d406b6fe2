"""Certificates that nobody but a test trusts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

TIMEOUT = 60.0  # seconds


def self_signed(folder: Path, openssl: str) -> tuple[ssl.SSLContext, Path]:
    """A context for `localhost`, and the certificate to trust."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True, timeout=TIMEOUT,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
