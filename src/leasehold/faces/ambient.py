"""Which store bare primitives use: the same answer in both worlds."""

from contextlib import AbstractContextManager
from typing import Any

from leasehold.defaults import overriding, set_default_hub
from leasehold.hub import hub_for


def set_default(store: Any) -> None:
    """What bare primitives use from now on: a URL, a client of either world, or None for none."""
    set_default_hub(hub_for(store) if isinstance(store, str) else store and store.hub)


def override(client: Any) -> AbstractContextManager[None]:
    """Everything that names no store uses this client's meanwhile; for tests."""
    return overriding(client.hub)
