"""Which store a client is of, and which resource a call of it is about."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from dibs.clock import Clock
from dibs.config import Duration
from dibs.core.names import KINDS, Kind, key_of
from dibs.defaults import DefaultStore, default_hub
from dibs.faces.sides import refuse_in_workflow
from dibs.hub import Hub, hub_for, hub_of
from dibs.model import Status
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


def resource_key(resource: str | bytes | Status, kind: Kind | None) -> bytes:
    """The key of a resource that is told by its name and kind (None: a lock), or by a status of it."""
    if not isinstance(resource, Status):
        return key_of("lock" if kind is None else kind, resource)
    if kind is not None and kind != resource.kind:
        raise ValueError(f"kind is {kind!r}, and the status is that of a {resource.kind}")
    return resource.key


def kinds_asked(kind: Kind | None) -> Sequence[str]:
    """That kind, or all. Raises `ValueError` for an unknown one."""
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: the kinds are {', '.join(KINDS)}")
    return (kind,)
