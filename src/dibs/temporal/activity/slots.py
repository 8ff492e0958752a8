"""The semaphore behind an activity's lock, and the store that it is in."""

from dataclasses import replace
from typing import Any

from temporalio.activity import Info

import dibs
from dibs.config import UNSET, seconds
from dibs.core.names import shown
from dibs.primitives.acquire import Acquiring
from dibs.primitives.ask import Ask
from dibs.primitives.watching import OnWait
from dibs.runtime.port import Runtime
from dibs.settings import configured
from dibs.temporal.activity.backend import LockBackend, refuse_nowhere
from dibs.temporal.activity.decorator import Need
from dibs.temporal.activity.name import full_name
from dibs.temporal.activity.terms import longest_hold, times_of, ttl_for, whole
from dibs.temporal.activity.waiting import KeptAcquiring, Position


class Slots(dibs.Semaphore):
    """A semaphore whose holders are called as Temporal calls them, and which acquires for one position."""

    called_by: str
    position: Position
    _pending: KeptAcquiring | None = None

    def _acquiring(self, rt: Runtime, ask: Ask, on_wait: OnWait | None) -> Acquiring:
        self._pending = KeptAcquiring(rt, ask, on_wait, self.position)
        return self._pending

    def keep_position(self) -> None:
        """The acquire that is under way may be cancelled without giving up its position."""
        if self._pending is not None:
            self._pending.keep_position()

    def _describe_here(self) -> Any:
        ask, terms = super()._describe_here()
        self._wish = ask._replace(owner=self.called_by), terms._replace(owner=self.called_by)
        return self._wish


class Stores:
    """The stores that the activities of a worker use, each opened once."""

    def __init__(self) -> None:
        self._by_url: dict[str, dibs.Client] = {}

    def client(self, backend: LockBackend) -> dibs.Client:
        """Of a URL, a client of either world, the name of a store, or None for the default store."""
        if backend is None:
            refuse_nowhere("an activity")
            return dibs.connect()
        if not isinstance(backend, str):
            return dibs.Client(backend.hub)
        if "://" not in backend:
            return dibs.Client.named(backend)
        found = self._by_url.get(backend)
        if found is None:
            found = self._by_url[backend] = dibs.connect(backend)
        return found

    async def close(self) -> None:
        """Disconnect from those that were opened by URL."""
        clients, self._by_url = list(self._by_url.values()), {}
        for client in clients:
            await client.close()


def slots_for(
    need: Need,
    arguments: tuple[Any, ...],
    info: Info,
    application: str,
    client: dibs.Client,
) -> Slots:
    """What one attempt of an activity is to acquire.

    Raises `TypeError` for an argument that makes no name, `InvalidName` for a name that is too long.
    """
    name = full_name(application, need.name.of(arguments))
    longest = longest_hold(times_of(info))
    given = {
        "ttl": UNSET if need.ttl is None else need.ttl,
        "priority": need.priority,
        "note": f"{info.activity_type} of {info.workflow_id or 'no workflow'}",
        "max_hold": longest,
        "reentrant": False,
    }
    config = configured("semaphore", name, given)
    if not need.auto_renew and longest is not None:
        config = replace(config, ttl=whole(longest), auto_renew=False)
    else:
        config = replace(config, ttl=ttl_for(longest, seconds(config.ttl)))
    slots = Slots.from_config(name, need.capacity, config, client=client)
    slots.called_by = owner_of(info, application)
    return slots


def owner_of(info: Info, application: str) -> str:
    """`{application}:{run id}:{activity id}`."""
    run = info.workflow_run_id or info.activity_run_id or ""
    return ":".join(each for each in (application, run, info.activity_id) if each)


def name_shown(slots: Slots) -> str:
    """Its name, for people."""
    name = slots.name
    return shown(name.encode() if isinstance(name, str) else name)
