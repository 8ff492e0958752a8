"""Which store bare primitives use: the same answer in both worlds."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from leasehold.defaults import overriding, set_default_hub
from leasehold.hub import Hub, hub_for

if TYPE_CHECKING:
    from leasehold.faces import aio, blocking


def set_default(store: "str | aio.Client | blocking.Client | None") -> None:
    """What bare primitives use from now on: a URL, a client of either world, or None for none."""
    if isinstance(store, str):
        set_default_hub(hub_for(store))
    else:
        set_default_hub(None if store is None else _hub_of(store, "a URL, a client, or None"))


def override(client: "aio.Client | blocking.Client") -> AbstractContextManager[None]:
    """Everything that names no store uses this client's meanwhile, in every thread; for tests."""
    return overriding(_hub_of(client, "a client, as connect() makes it"))


def _hub_of(client: object, wanted: str) -> Hub:
    hub = getattr(client, "hub", None)
    if not isinstance(hub, Hub):
        raise TypeError(f"{client!r} names no store: give {wanted}")
    return hub
