"""What an activity's lock may be kept in: a store's URL, a client, or the name of a store."""

from typing import TYPE_CHECKING, Any

from dibs.backends import check_scheme
from dibs.defaults import default_is_named
from dibs.errors import NotConfigured

if TYPE_CHECKING:
    import dibs
    import dibs.sync

type LockBackend = str | dibs.Client | dibs.sync.Client | None
"""A store's URL or name, a client of either world, or None for what is said elsewhere."""


def checked_backend(backend: Any) -> LockBackend:
    """As it was given; nothing is opened. Raises `TypeError`, and `NotConfigured` for a strange URL."""
    if isinstance(backend, str):
        if not backend:
            raise NotConfigured("backend is empty: give a store's URL or name, or leave it out")
        if "://" in backend:
            check_scheme(backend)
        return backend
    if backend is None or hasattr(backend, "hub"):
        client: LockBackend = backend
        return client
    raise TypeError(
        f"backend is {backend!r}: give a store's URL, what dibs.connect() returned, "
        "or the name of a store"
    )


def refuse_nowhere(who: str) -> None:
    """Raises `NotConfigured` where nobody has named a store: a file of this host's excludes no other host."""
    if not default_is_named():
        raise NotConfigured(
            f"nothing says where the lock of {who} is kept: give needs_lock(backend=...) or "
            "DibsPlugin(backend=...) a store's URL, such as temporal://host:7233/namespace or "
            "redis://host, or set DIBS_URL"
        )
