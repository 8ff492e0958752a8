"""TLS for the service."""

import ssl
from functools import partial
from pathlib import Path

from dibs.errors import NotConfigured


def context_for(certificate: str, key: str) -> ssl.SSLContext | None:
    """What connections are encrypted with; None where no certificate is given.

    Raises `NotConfigured` for files that can't be read or do not belong together.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for setting, path in (("tls_cert", certificate), ("tls_key", key)):
        if not Path(path).is_file():
            raise NotConfigured(f"{setting}: no such file: {path}")
    _check(certificate, key)
    try:
        context.load_cert_chain(certificate, key, password=partial(_locked, key))
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            told = f"{key} is not the private key of the certificate in {certificate}"
            raise NotConfigured(told) from error
        raise NotConfigured(f"{certificate} and {key} do not serve: {error}") from error
    return context


def _check(certificate: str, key: str) -> None:
    """Raises `NotConfigured` for a file that has something else in it: OpenSSL would not say which."""
    for path, other, wanted in (
        (certificate, key, "certificate"),
        (key, certificate, "private key"),
    ):
        if not _has(path, wanted):
            swapped = ": are the two swapped?" if _has(other, wanted) else ""
            raise NotConfigured(f"{path} has no {wanted} in PEM{swapped}")


def _has(path: str, what: str) -> bool:
    """Whether the file has such a block. Raises `NotConfigured` if it can't be read."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise NotConfigured(f"{path} can't be read: {error.strerror}") from error
    end = what.upper().encode() + b"-----"
    return any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(end) for line in lines)


def _locked(key: str) -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise NotConfigured(f"{key} has a passphrase: give a key without, which only the server reads")
