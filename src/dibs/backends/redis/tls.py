"""Encryption: which certificates are believed, and which one is ours."""

from functools import cache
from typing import TYPE_CHECKING

from dibs.backends.redis.settings import Tls
from dibs.errors import NotConfigured

if TYPE_CHECKING:
    import ssl


def context_of(
    *,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    verify: bool = True,
    check_name: bool = True,
) -> Tls:
    """A function that makes the TLS context when it is first needed.

    Without a `ca`, those that the system trusts are trusted. The function raises `NotConfigured` for
    files that can't be used.
    """

    @cache
    def make() -> "ssl.SSLContext":
        import ssl

        try:
            context = ssl.create_default_context(cafile=ca)
            if cert is not None:
                context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            files = ", ".join(name for name in (ca, cert, key) if name)
            raise NotConfigured(f"TLS can't be set up with {files}: {error}") from error
        if not (verify and check_name):
            context.check_hostname = False
        if not verify:
            context.verify_mode = ssl.CERT_NONE
        return context

    return make
