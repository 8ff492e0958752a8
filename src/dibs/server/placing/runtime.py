"""The way to several stores, as if they were one: each command goes to where its key lives."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Acquire, Capabilities, Command, Notification, Page, Renew, Reply
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.notifications import NotificationRouter, Receiver
from dibs.runtime.port import CallResult, Keeper, TimedReply
from dibs.server.placing.atlas import Atlas
from dibs.server.placing.home import Home
from dibs.server.placing.table import Table, is_denial, is_grant
from dibs.server.placing.ways import Ways

AGAIN = 3
"""How often a command is sent again because its directory has moved meanwhile."""

_STALE = (
    "the service can't read its records, which say where locks live: nothing is granted until it can. "
    "Ask again. Operators: check the store with the records"
)


class Moving(BackendUnavailable):
    """The key's directory moves to another store at this moment."""

    def __init__(self) -> None:
        super().__init__(
            "this directory is moving to another store, which takes some seconds: send it again, "
            "with the same id, if you brought one"
        )


class PlacedRuntime:
    """A `runtime.port.Runtime` over those of one store or of several.

    With one store, commands go straight there.
    """

    def __init__(self, first: AsyncRuntime, ways: Ways, atlas: Atlas) -> None:
        self.ways = ways
        self.atlas = atlas
        self.notifications = NotificationRouter(lambda _: None)
        self.receiver: Receiver = self.notifications
        self.keeper = PlacedKeeper(ways, atlas, first.keeper)
        self.connection = PlacedConnection(ways, atlas)
        self.connect_timeout = first.connect_timeout
        self.call_timeout = max(each.call_timeout for each in self.stores)
        self.holding = first.holding
        self.stamp = first.stamp
        self.now, self.me, self.signal, self.guard = first.now, first.me, first.signal, first.guard
        self.spawn, self.call_soon, self.examine = first.spawn, first.call_soon, first.examine
        self.is_ready = False
        self._first = first
        for each in self.stores:
            each.receiver = PlaceMail(self)
        atlas.on_change = lambda: ways.go_by(atlas.table.listing)

    @property
    def capabilities(self) -> Capabilities:
        """What all of them promise."""
        return self.ways.capabilities

    @property
    def stores(self) -> Collection[AsyncRuntime]:
        """The way to each of them that is here."""
        return self.ways.named.values()

    @property
    def may_grant(self) -> bool:
        """Whether anything may be granted at all, by what is known of where directories live."""
        return self.atlas.is_fresh

    def place_of(self, key: bytes) -> str:
        """The placement where a key lives."""
        return self.atlas.table.home_of(key).place

    @property
    def inbox(self) -> str:
        """Something, once there is one: a command gets that of whichever store it goes to."""
        return self._first.inbox

    @property
    def is_over(self) -> bool:
        """The event loop is closed."""
        return self._first.is_over

    async def listen(self) -> None:
        """All of them listen from the start."""

    async def ready(self, timeout: float | None = None) -> None:
        """Connect. The default placement has to be there; another may come later."""
        await self.ways.ready(self.atlas.table.default.place)
        self.is_ready = True

    # -- one command --------------------------------------------------------------------------------

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        """See `runtime.port.Runtime`. Raises `Moving` for an acquire in a directory that moves."""
        if not self.atlas.is_lone():
            return await self._placed(command, wait)
        answer = await self._first.call(command, wait)
        if self.atlas.is_lone() or not _depends_on_place(command, answer.reply):
            return answer
        return await self._placed(command, wait, resent=answer.resent)

    async def _placed(
        self, command: Command, wait: float | None, *, resent: bool = False
    ) -> TimedReply:
        """Where there may be several stores. `resent`: a copy was under way before already."""
        sent = self.now()
        for _ in range(AGAIN):
            mark = self.atlas.mark
            await self._be_fresh_for((command,))
            home = self._home_for(command)
            runtime = await self.ways.to(home.place)
            answer = await runtime.call(fitted(runtime, command, home.floor), wait)
            resent = resent or answer.resent
            if await self._stands(command, answer.reply, home, mark):
                return TimedReply(answer.reply, sent, resent)
        raise Moving

    async def _be_fresh_for(self, commands: Sequence[Command]) -> None:
        """Read where directories live, if that is too old for a grant and one is asked for."""
        if self.atlas.is_fresh or not any(type(each) is Acquire for each in commands):
            return
        try:
            await self.atlas.read_since(self.atlas.mark)
        except DibsError:
            pass  # `_home_for` says so of each acquire

    def _home_for(self, command: Command) -> Home:
        """Where a command goes. Raises `BackendUnavailable` for an acquire that may not be granted."""
        home = self.atlas.table.home_of(command.key)
        if type(command) is Acquire:
            if not self.atlas.is_fresh:
                raise BackendUnavailable(_STALE)
            if home.to:
                raise Moving
        return home

    async def _stands(self, command: Command, reply: Reply, home: Home, mark: int) -> bool:
        """Whether a reply is true, wherever its key lives by now; if not, the command is sent again.

        `mark`: the atlas' when the command left. Raises `BackendUnavailable`.
        """
        if not _depends_on_place(command, reply):
            return True
        atlas = self.atlas
        if is_denial(reply) and (home.to or not atlas.is_fresh):
            try:
                await atlas.read_since(mark)
            except DibsError as error:
                raise BackendUnavailable(_STALE) from error
            return atlas.table.home_of(command.key) == home
        return atlas.is_fresh and not home.to and atlas.table.home_of(command.key) == home

    # -- many ---------------------------------------------------------------------------------------

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """See `runtime.port.Runtime`. Commands about one key keep their order."""
        if not self.atlas.is_lone():
            return await self._all_placed(commands, wait)
        told = list(await self._first.call_all(commands, wait))
        if not self.atlas.is_lone():
            for number, (command, each) in enumerate(zip(commands, told, strict=True)):
                if type(each) is TimedReply and _depends_on_place(command, each.reply):
                    told[number] = await self._tried(command, wait, resent=each.resent)
        return told

    async def _all_placed(
        self, commands: Sequence[Command], wait: float | None
    ) -> Sequence[CallResult]:
        """Those for one place travel together."""
        await self._be_fresh_for(commands)
        told: dict[int, CallResult] = {}
        groups: dict[str, dict[int, Home]] = {}
        for number, command in enumerate(commands):
            try:
                home = self._home_for(command)
                groups.setdefault(home.place, {})[number] = home
            except BackendUnavailable as error:
                told[number] = error
        if len(groups) > 1:  # a store that hangs must not delay what the others answer
            ttls = [command.ttl for command in commands if isinstance(command, Acquire | Renew)]
            wait = min([*ttls, 12 * (wait or self.call_timeout)]) / 12
        await asyncio.gather(
            *(self._group(commands, place, homes, told, wait) for place, homes in groups.items())
        )
        return [told[number] for number in range(len(commands))]

    async def _group(
        self,
        commands: Sequence[Command],
        place: str,
        homes: dict[int, Home],
        told: dict[int, CallResult],
        wait: float | None,
    ) -> None:
        """Commands for one place."""
        mark = self.atlas.mark
        try:
            runtime = await self.ways.to(place)
        except DibsError as error:
            told.update(dict.fromkeys(homes, error))
            return
        sent = [fitted(runtime, commands[each], home.floor) for each, home in homes.items()]
        answers = await runtime.call_all(sent, wait)
        for (number, home), answer in zip(homes.items(), answers, strict=True):
            told[number], command = answer, commands[number]
            if type(answer) is not TimedReply:
                continue
            try:
                stands = await self._stands(command, answer.reply, home, mark)
            except BackendUnavailable as error:
                told[number] = error
                continue
            if not stands:
                told[number] = await self._tried(command, wait, resent=answer.resent)

    async def _tried(self, command: Command, wait: float | None, *, resent: bool) -> CallResult:
        try:
            return await self._placed(command, wait, resent=resent)
        except DibsError as error:
            return error


def _depends_on_place(command: Command, reply: Reply) -> bool:
    """Whether a reply is true only if the key lives where the command went."""
    return is_grant(command, reply) or is_denial(reply)


def fitted(runtime: AsyncRuntime, command: Command, floor: int = 0) -> Command:
    """A command as a store gets it: with that store's inbox, and a floor that is high enough."""
    if type(command) is Acquire:
        return replace(
            command,
            floor=max(command.floor, floor),
            inbox=runtime.inbox if command.inbox else "",
        )
    if type(command) is Renew and command.inbox:
        return replace(command, inbox=runtime.inbox)
    return command


class PlacedKeeper:
    """A `runtime.port.Keeper` over those of several stores."""

    def __init__(self, ways: Ways, atlas: Atlas, first: Keeper) -> None:
        self.watch, self.unwatch, self.held = first.watch, first.unwatch, first.held
        self._ways = ways
        self._atlas = atlas

    def abandon(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None = None
    ) -> None:
        """See `runtime.port.Keeper`."""
        found = self._ways.named.get(self._atlas.table.home_of(key).place)
        if found is not None:
            found.keeper.abandon(key, lease_id, tombstone, retain_until)


class PlaceMail:
    """One store's. Takes the place of its `runtime.receiver`.

    Where there are several, a pushed grant is not told as such, as a directory may have moved since: its
    waiter asks, and has the answer of the place where the key lives now.
    """

    def __init__(self, placed: "PlacedRuntime") -> None:
        self._placed = placed

    def deliver(self, notification: Notification) -> None:
        if notification.event == "granted" and not self._placed.atlas.is_lone():
            notification = Notification(
                notification.key, notification.lease, notification.inbox, "refused"
            )
        self._placed.receiver.deliver(notification)

    def recheck(self) -> None:
        self._placed.receiver.recheck()


class PlacedConnection:
    """As much of a `stores.port.AsyncConnection` as the service uses itself."""

    def __init__(self, ways: Ways, atlas: Atlas) -> None:
        self._ways = ways
        self._atlas = atlas

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`, wherever they are."""
        table = self._atlas.table
        if table.is_lone:
            only = await self._ways.to(table.default.place)
            return await only.page(prefix, cursor, limit)
        names = sorted(table.places_of(prefix))
        pages = await asyncio.gather(
            *(self._page(name, table, prefix, cursor, limit) for name in names)
        )
        return _one_page(pages, limit)

    async def _page(
        self, name: str, table: Table, prefix: bytes, cursor: bytes | None, limit: int
    ) -> Page:
        """What lives at one place, without late copies of what has moved away from it."""
        runtime = await self._ways.to(name)
        page = await runtime.page(prefix, cursor, limit)
        return Page(
            [each for each in page.items if table.home_of(each.key).place == name], page.cursor
        )


def _one_page(pages: Sequence[Page], limit: int) -> Page:
    """The next keys of several places' pages, which all began behind the same key."""
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
