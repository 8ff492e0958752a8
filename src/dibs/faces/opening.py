"""Which store a client is of."""

from typing import Any, NamedTuple, TypedDict

from dibs.clock import Clock
from dibs.config import Duration
from dibs.defaults import DefaultStore, default_hub
from dibs.faces.sides import refuse_in_workflow
from dibs.hub import Hub, hub_for, hub_of
from dibs.store_names import store_name
from dibs.stores import hub_named


class ConnectOptions(TypedDict, total=False):
    """How a store is spoken to."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None
    client: Any


class Opened(NamedTuple):
    """The store of a client, and what ends with it."""

    hub: Hub
    shared: bool = False
    """Others use the store too, so closing the client leaves it open."""
    default: DefaultStore | None = None

    def begin(self) -> None:
        """The client is in use, maybe again after it was closed."""
        if self.default is not None:
            self.default.begin()

    def end(self) -> bool:
        """The client is closed: whether that closes its store."""
        if self.default is not None:
            self.default.end()
        return not self.shared


def opened(url: str | None, default: bool, options: ConnectOptions) -> Opened:
    """The store of a URL or of a client; without either the default store, which takes no options."""
    refuse_in_workflow(name="Client")
    if url is None and "client" not in options:
        if options:
            raise TypeError(
                f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
                "and the default store has its own"
            )
        return Opened(default_hub(), shared=True)
    if url is not None and "client" in options:
        raise TypeError("connect() was given a URL and client=: give one of them")
    hub = hub_of(**options) if url is None else hub_for(url, **options)
    found = Opened(hub, default=DefaultStore(hub) if default else None)
    found.begin()
    return found


def named(name: str) -> Opened:
    """The store that settings name so. Raises `NotConfigured` if there is none."""
    refuse_in_workflow(name="Client")
    return Opened(hub_named(store_name(name)), shared=True)
