"""Commands, scans and notifications of several stores, as if they were one store.

Each command goes to the store where its key lives. An answer that depends on that, a grant or a denial, is
passed on only if the key still lives there when it arrives.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import reduce

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Capabilities, Command, Notification, Page, Release, Renew, Reply
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.notifications import NotificationRouter, Receiver
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.background import LogOnce
from dibs.server.placement.reachability import Reachability
from dibs.server.placement.registry import Home, read_existing_list
from dibs.server.placement.rules import Place
from dibs.server.placement.table import RoutingTable, TableReader, is_denial, is_grant
from dibs.server.records.port import Records

log: logging.Logger = logging.getLogger("dibs.server")

AGAIN = 3
"""How often a command is sent because its directory has moved meanwhile."""

_STALE = (
    "the service can't read its records, which say where locks live: nothing is granted until it can. "
    "Ask again. Operators: check the store with the records"
)


_UNCONFIRMED = (
    "this directory began to move to another store while the command was under way, which may not have been "
    "applied"
)


class Moving(DibsError):
    """The key's directory is moving to another store, and nothing new is granted in it. Nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "this directory is moving to another store, and its locks can be acquired once it has moved: "
            "acquire again after Retry-After, with the same id, if you brought one"
        )


class StoreRouter:
    """A `runtime.port.Runtime`, its `Keeper`, and a `Receiver`, over the stores of a service."""

    def __init__(self, stores: Mapping[str, AsyncRuntime], reader: TableReader) -> None:
        """`stores` are by address. The list decides their names, not the settings."""
        first = next(iter(stores.values()))
        self.reader = reader
        self.named: Mapping[str, AsyncRuntime] = {}
        """The stores that are here, by the names of their placements."""
        self.places: tuple[Place, ...] = ()
        """The placements that are here, in the order of the list."""
        self.keeper = self
        self.notifications: NotificationRouter = NotificationRouter(lambda _: None)
        self.receiver: Receiver = self.notifications
        """Takes the notifications of all stores."""
        self.connect_timeout: float = first.connect_timeout
        self.call_timeout: float = max(each.call_timeout for each in stores.values())
        self.holding, self.stamp = first.holding, first.stamp
        self.now, self.me, self.signal, self.guard = first.now, first.me, first.signal, first.guard
        self.spawn, self.call_soon, self.examine = first.spawn, first.call_soon, first.examine
        self.prepare, self.watch, self.unwatch, self.held = (
            first.keeper.prepare,
            first.keeper.watch,
            first.keeper.unwatch,
            first.keeper.held,
        )
        self.is_ready: bool = False
        self.reachability: Reachability = Reachability(first.now)
        self._first = first
        self._by_address = stores
        self._complaints = LogOnce()
        for each in stores.values():
            each.receiver = self
        reader.on_change = self._name_stores
        self._name_stores()

    @classmethod
    async def over(
        cls, stores: Mapping[str, AsyncRuntime], records: Records, fresh: float
    ) -> "StoreRouter":
        """A router over the stores at these addresses, which have joined the list."""
        first = next(iter(stores.values()))
        sent = first.now()
        table = RoutingTable(*await read_existing_list(records), sent)
        return cls(stores, TableReader(records, first.now, table, fresh, first))

    def _name_stores(self) -> None:
        """Go by the list, which is new or has changed."""
        places = self.table.listing.places
        here = [
            (each, store)
            for each in places
            for address, store in self._by_address.items()
            if address in each.stores
        ]
        self.named = {each.name: store for each, store in here}
        self.places = tuple(each.place for each, _ in here)
        for each in places:
            if each.name not in self.named:
                self._complaints.warn(
                    f"the placement {each.name} ({each.stores[-1]})",
                    "it is not in this server's settings: what lives there can't be reached from here",
                )
        if any(each.to for each in self.table.homes.values()):
            self.recheck()  # who waits in a directory that drains leaves its old queue

    @property
    def table(self) -> RoutingTable:
        """The latest reading of where directories live."""
        return self.reader.table

    @property
    def stores(self) -> Collection[AsyncRuntime]:
        """The stores that are here."""
        return self.named.values()

    @property
    def capabilities(self) -> Capabilities:
        """The promises that all stores give."""
        return reduce(_both, (each.capabilities for each in self._by_address.values()))

    @property
    def may_grant(self) -> bool:
        """Whether anything can be granted, by what is known about where directories live."""
        return self.reader.is_fresh

    @property
    def inbox(self) -> str:
        """Not empty once there is one. Each command gets the inbox of the store that it goes to."""
        return self._first.inbox

    @property
    def is_over(self) -> bool:
        """The event loop is closed."""
        return self._first.is_over

    def place_of(self, key: bytes) -> str:
        """The placement where a key lives."""
        return self.reader.table.home_of(key).place

    async def listen(self) -> None:
        """Do nothing: each store's runtime listens already."""

    async def ready(self, timeout: float | None = None) -> None:
        """Connect. The default placement must answer. Another can come later."""
        names = tuple(self.named)
        found = await asyncio.gather(*map(self._connect, names), return_exceptions=True)
        for name, error in zip(names, found, strict=True):
            if isinstance(error, DibsError) and name != self.table.default.place:
                log.warning("the placement %s can't be reached: %s", name, error)
            elif error is not None:
                raise error
        self.is_ready = True

    async def _connect(self, place: str) -> None:
        if place == self.table.default.place:
            await self.to(place)
        else:
            async with self._asking(place):
                await self.to(place)

    async def to(self, place: str, wait: float | None = None) -> AsyncRuntime:
        """The store of a placement, connected. Raises `BackendUnavailable`, within `wait` seconds."""
        found = self.named.get(place)
        if found is None:
            raise BackendUnavailable(
                f"this lock lives at the placement {place}, which is not configured on this server"
            )
        self.reachability.check(place)
        if not found.is_ready:
            await found.ready(wait)
        return found

    def _asking(self, place: str) -> AbstractAsyncContextManager[None]:
        """A call to a placement: see `Reachability.asking`. A lone store is asked however long it takes."""
        store = self.named.get(place)
        if store is None or self.table.is_lone:
            return nullcontext()
        return self.reachability.asking(place, store)

    # -- commands -----------------------------------------------------------------------------------

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        """See `runtime.port.Runtime`. Raises `Moving` for an acquire in a directory that moves."""
        reader = self.reader
        if not reader.is_lone:
            return await self._call_where_it_lives(command, wait)
        home, mark = reader.table.default, reader.mark
        store = await self.to(home.place, wait)
        answer = await store.call(fitted(store, command, home.floor), wait)
        if await self._stands(store, command, answer.reply, home, mark):
            return answer
        return await self._call_where_it_lives(command, wait, answer)

    async def _call_where_it_lives(
        self, command: Command, wait: float | None, sent_before: TimedReply | None = None
    ) -> TimedReply:
        """`sent_before`: the answer of a store where the key does not live any more."""
        reader, before = self.reader, sent_before
        for _ in range(AGAIN):
            if type(command) is Acquire and not reader.is_fresh:
                await self._refresh()
            try:
                home, mark = self._home_for(command), reader.mark
            except Moving:
                if before is None:
                    raise
                break
            async with self._asking(home.place):
                store = await self.to(home.place, wait)
                answer = await store.call(fitted(store, command, home.floor), wait)
                self.reachability.answered(home.place)
            if before is not None:
                answer = TimedReply(answer.reply, before.sent, answer.resent or before.resent)
            if await self._stands(store, command, answer.reply, home, mark):
                return answer
            before = answer
        raise BackendUnavailable(_UNCONFIRMED)

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """See `runtime.port.Runtime`. Commands about one key keep their order.

        Commands to one store travel together.
        """
        if not self.reader.is_fresh and any(type(each) is Acquire for each in commands):
            await self._refresh()
        results: dict[int, CallResult] = {}
        groups: dict[str, dict[int, Home]] = {}
        for number, command in enumerate(commands):
            try:
                home = self._home_for(command)
            except DibsError as error:
                results[number] = error
            else:
                groups.setdefault(home.place, {})[number] = home
        if len(groups) > 1:  # a store that hangs must not delay what the others answer
            ttls = [command.ttl for command in commands if isinstance(command, Acquire | Renew)]
            wait = min([*ttls, 12 * (wait or self.call_timeout)]) / 12
        calls = [
            self._group(commands, place, homes, results, wait) for place, homes in groups.items()
        ]
        await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        return [results[number] for number in range(len(commands))]

    async def _group(
        self,
        commands: Sequence[Command],
        place: str,
        homes: dict[int, Home],
        results: dict[int, CallResult],
        wait: float | None,
    ) -> None:
        """Send the commands for one placement, and put what comes of them into `results`."""
        mark = self.reader.mark
        try:
            async with self._asking(place):
                store = await self.to(place, wait)
                sent = [fitted(store, commands[each], home.floor) for each, home in homes.items()]
                answers = await store.call_all(sent, wait)
                if not all(isinstance(each, BackendUnavailable) for each in answers):
                    self.reachability.answered(place)
        except DibsError as error:
            results.update(dict.fromkeys(homes, error))
            return
        for (number, home), answer in zip(homes.items(), answers, strict=True):
            results[number], command = answer, commands[number]
            if type(answer) is not TimedReply:
                continue
            try:
                if not await self._stands(store, command, answer.reply, home, mark):
                    results[number] = await self._call_where_it_lives(command, wait, answer)
            except DibsError as error:
                results[number] = error

    async def _refresh(self) -> None:
        """Read where directories live, as that is too old for a grant."""
        with suppress(DibsError):  # `_home_for` raises for each acquire
            await self.reader.read_since(self.reader.mark)

    def _home_for(self, command: Command) -> Home:
        """The home of a command's key.

        Raises `Moving` and `BackendUnavailable` for an acquire that cannot be granted.
        """
        home = self.table.home_of(command.key)
        if type(command) is Acquire:
            if not self.reader.is_fresh:
                raise BackendUnavailable(_STALE)
            if home.to:
                raise Moving
        return home

    async def _stands(
        self, store: AsyncRuntime, command: Command, reply: Reply, home: Home, mark: int
    ) -> bool:
        """Whether a store's reply is true, wherever its key lives by now. If not, the command is sent again.

        `mark`: the reader's when the command left. Raises `BackendUnavailable`.
        """
        if is_grant(command, reply):
            if self.reader.is_fresh and not home.to and self.table.home_of(command.key) == home:
                return True
            if type(command) is Renew:
                await _give_back(store, command)
                raise BackendUnavailable(_UNCONFIRMED)
            return False
        if not is_denial(reply):
            return True
        if home.to or not self.reader.is_fresh:
            try:
                await self.reader.read_since(mark)
            except DibsError as error:
                raise BackendUnavailable(_STALE) from error
        return self.table.home_of(command.key) == home

    def abandon(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None = None
    ) -> None:
        """See `runtime.port.Keeper`."""
        store = self.named.get(self.place_of(key))
        if store is not None:
            store.keeper.abandon(key, lease_id, tombstone, retain_until)

    # -- notifications ------------------------------------------------------------------------------

    def deliver(self, notification: Notification) -> None:
        """Pass on a store's notification.

        With several stores, a grant by notification is not passed on as such: its directory may have moved
        since. Its waiter asks, and gets the answer of the store where the key lives now.
        """
        if notification.event == "granted" and not self.reader.is_lone:
            notification = Notification(
                notification.key, notification.lease, notification.inbox, "refused"
            )
        self.receiver.deliver(notification)

    def recheck(self) -> None:
        """Notifications may have been lost."""
        self.receiver.recheck()

    # -- scans --------------------------------------------------------------------------------------

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`, wherever they live. Raises `BackendUnavailable`."""
        table = self.table
        names = sorted(table.places_of(prefix))
        pages = await asyncio.gather(
            *(self._page(name, table, prefix, cursor, limit) for name in names)
        )
        return pages[0] if len(pages) == 1 else _merged(pages, limit)

    async def _page(
        self, name: str, table: RoutingTable, prefix: bytes, cursor: bytes | None, limit: int
    ) -> Page:
        """A store's page, without late copies of what has moved away from it."""
        page = await (await self.to(name)).page(prefix, cursor, limit)
        if table.is_lone:
            return page
        return Page(
            [each for each in page.items if table.home_of(each.key).place == name], page.cursor
        )


async def _give_back(store: AsyncRuntime, command: Renew) -> None:
    """Release a grant that is not acknowledged: its next renewal would look like that of a holder."""
    try:
        await store.call(Release(command.key, command.id))
    except DibsError:
        store.keeper.abandon(command.key, command.id, 0.0)


def fitted(store: AsyncRuntime, command: Command, floor: int) -> Command:
    """A command as a store gets it: with that store's inbox, and a floor that is high enough."""
    if type(command) is Acquire:
        inbox = store.inbox if command.inbox else ""
        if command.floor < floor or command.inbox != inbox:
            return replace(command, floor=max(command.floor, floor), inbox=inbox)
    elif type(command) is Renew and command.inbox and command.inbox != store.inbox:
        return replace(command, inbox=store.inbox)
    return command


def _merged(pages: Sequence[Page], limit: int) -> Page:
    """The next keys of several stores' pages, which all began after the same key."""
    ends = [page.cursor for page in pages if page.cursor is not None]
    known_to = min(ends) if ends else None
    items = sorted(
        (
            status
            for page in pages
            for status in page.items
            if known_to is None or status.key <= known_to
        ),
        key=lambda status: status.key,
    )
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].key)
    return Page(items, known_to)


_WIDTH = {"process": 0, "host": 1, "cluster": 2}


def _both(one: Capabilities, other: Capabilities) -> Capabilities:
    """The promises that both give."""
    return Capabilities(
        one.scope if _WIDTH[one.scope] <= _WIDTH[other.scope] else other.scope,
        one.clock and other.clock,
        one.durable and other.durable,
        one.fenced and other.fenced,
        one.notifies and other.notifies,
        one.survives & other.survives,
        one.asked and other.asked,
    )
