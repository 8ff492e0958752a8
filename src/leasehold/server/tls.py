"""TLS for the service."""

import ssl
from pathlib import Path

from leasehold.errors import NotConfigured


def context_for(certificate: str, key: str) -> ssl.SSLContext | None:
    """What connections are encrypted with; None where no certificate is given.

    Raises `NotConfigured` for files that can't be read or do not belong together.
    """
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path in (certificate, key):
        if not Path(path).is_file():
            raise NotConfigured(
                f"there is no file {path}, which is to have the TLS certificate or key"
            )
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise NotConfigured(f"{certificate} and {key} do not serve: {error}") from error
    return context
