"""TLS of the connections to a store."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dibs.errors import NotConfigured

if TYPE_CHECKING:
    import ssl

type Tls = Callable[[], ssl.SSLContext]
"""Makes the context of a connection. A function, as reading certificates takes time."""


def tls_context(
    shown: str, ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> "ssl.SSLContext":
    """Make a client's context from files. Without a CA, it trusts those that the system trusts.

    Raises `NotConfigured`, with the store's URL as `shown`, if a file cannot be used.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        files = ", ".join(name for name in (ca, certificate, key) if name)
        raise NotConfigured(f"{shown}: TLS can't be set up with {files}: {error}") from error
    return context
