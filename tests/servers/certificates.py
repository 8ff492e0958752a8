"""Certificates for servers on this host, made when they are needed."""

import shutil
import subprocess
from pathlib import Path

from tests.servers.binaries import MissingServer


def self_signed(certificate: Path) -> Path:
    """Make one for `localhost` and 127.0.0.1 that is its own authority; its key lies beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise MissingServer("no openssl, which makes a test server's certificate: install it")
    certificate.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", key_of(certificate), "-out", certificate,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate


def key_of(certificate: Path) -> Path:
    """Where its private key lies."""
    return certificate.with_suffix(".key")
