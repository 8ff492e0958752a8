"""The cookie that brings a session: sent to this host only, by its own pages only, read by no script."""

from dibs.server.answers import Header

NAME = "dibs_session"
SAFE = f"__Host-{NAME}"
"""Under TLS. Browsers keep what is called so only if it came by TLS, from just this host."""


def setting(sealed: str, seconds: int, *, over_tls: bool) -> Header:
    """Have a browser keep it for so long."""
    name, secure = (SAFE, "; Secure") if over_tls else (NAME, "")
    told = f"{name}={sealed}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return (b"set-cookie", told.encode())


def clearing(*, over_tls: bool) -> Header:
    """Have a browser forget it."""
    return setting("", 0, over_tls=over_tls)


def brought(header: str, *, over_tls: bool) -> list[str]:
    """All sessions in a `Cookie` header: under TLS those only that came by TLS.

    There may be several: a server on another port of this host may have set one for some path.
    """
    names = (SAFE,) if over_tls else (SAFE, NAME)
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [value for name, _, value in pairs if name in names and value]
