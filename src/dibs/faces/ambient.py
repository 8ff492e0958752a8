"""Which store bare primitives use: the same answer in both worlds."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from dibs.defaults import set_default_hub
from dibs.hub import Hub, hub_for
from dibs.overrides import overriding
from dibs.store_names import store_name

if TYPE_CHECKING:
    from dibs import _api, sync


def set_default(store: "str | _api.Client | sync.Client | None") -> None:
    """What bare primitives use from now on: a URL, a client of either world, or None for none."""
    if isinstance(store, str):
        set_default_hub(hub_for(store))
    else:
        set_default_hub(None if store is None else _hub_of(store, "a URL, a client, or None"))


def override(
    client: "_api.Client | sync.Client", *, name: str | None = None
) -> AbstractContextManager[None]:
    """Whatever names no store (or that store) uses this client's meanwhile; for tests.

    It holds in every thread and loop, and nests. Of two that overlap in time, in two tasks or threads, each
    has its own, as have the tasks that it begins; who began neither has the later one.
    """
    hub = _hub_of(client, "a client, as connect() makes it")
    return overriding(None if name is None else store_name(name), hub)


def _hub_of(client: object, wanted: str) -> Hub:
    hub = getattr(client, "hub", None)
    if not isinstance(hub, Hub):
        raise TypeError(f"{client!r} names no store: give {wanted}")
    return hub
