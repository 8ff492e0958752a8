"""The way to several stores, as if they were one: each command goes to where its key lives."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import (
    Acquire,
    Capabilities,
    Command,
    Granted,
    Page,
    Renew,
    Reply,
    Revoke,
    Status,
)
from leasehold.runtime.asyncio import AsyncRuntime
from leasehold.runtime.mail import Mailroom
from leasehold.runtime.port import Answer, Keeper, Told
from leasehold.server.placing.atlas import Atlas
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.home import Home
from leasehold.server.placing.mail import PlaceMail
from leasehold.server.placing.merging import one_page
from leasehold.server.placing.plans import To, plan_for
from leasehold.server.placing.table import may_tell

log = logging.getLogger("leasehold.server")

PATIENCE = 120.0
"""A place in line lives no longer without a sign of life: a guard stands longer than any of them."""

AGAIN = 3
"""So often a command is carried out anew whose directory has taken a step of a move meanwhile."""

INBOX = "placed"
"""What stands for the inbox of whichever store a command goes to."""


class PlacedRuntime:
    """A `runtime.port.Runtime` over those of several stores; the first of `places` is the default."""

    def __init__(self, places: Mapping[str, AsyncRuntime], atlas: Atlas, guards: Guards) -> None:
        first = next(iter(places.values()))
        self.places = places
        self.atlas = atlas
        self.guards = guards
        self.mail = Mailroom(lambda _: None)
        self.keeper = PlacedKeeper(self, first.keeper)
        self.backend = PlacedBackend(self)
        self.connect_timeout = first.connect_timeout
        self.call_timeout = max(each.call_timeout for each in places.values())
        self.holding, self.cohorts = first.holding, first.cohorts
        self.now, self.me, self.signal, self.guard = first.now, first.me, first.signal, first.guard
        self.spawn, self.call_soon, self.examine = first.spawn, first.call_soon, first.examine
        self.is_ready = False
        self._first = first
        for each in places.values():
            each.mail = PlaceMail(self)

    @property
    def capabilities(self) -> Capabilities:
        """What all of them promise."""
        return reduce(_both, (each.capabilities for each in self.places.values()))

    @property
    def inbox(self) -> str:
        """Something, once there is one."""
        return INBOX if self._first.inbox else ""

    @property
    def is_over(self) -> bool:
        """The event loop is closed."""
        return self._first.is_over

    async def listen(self) -> None:
        """All of them listen from the start."""

    async def ready(self) -> None:
        """Connect. The default place has to be there; another may come later."""
        for name, each in self.places.items():
            try:
                await each.ready()
            except LeaseholdError as error:
                if each is self._first:
                    raise
                log.warning("the placement %s can't be reached: %s", name, error)
        self.is_ready = True

    # -- commands -----------------------------------------------------------------------------------

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        """See `runtime.port.Runtime`. What may not be told raises `BackendUnavailable`."""
        sent = self.now()
        for _ in range(AGAIN):
            home = self.atlas.table.home_of(command.key)
            self._check_fresh(command)
            if home.to or type(command) is Revoke:
                answer = await self._amid(home, command, patience)
            else:
                answer = await self._at(home, command, patience)
            if self._may_tell(command, answer.reply, home):
                return Answer(answer.reply, sent, answer.resent)
        raise BackendUnavailable("its directory is moving: send it again, with the same id")

    async def call_all(
        self, commands: Sequence[Command], patience: float | None = None
    ) -> Sequence[Told]:
        """See `runtime.port.Runtime`. What is about one key keeps its order."""
        told: dict[int, Told] = {}
        table = self.atlas.table
        groups: dict[str, list[int]] = {}
        moving: dict[bytes, list[int]] = {}
        for number, command in enumerate(commands):
            home = table.home_of(command.key)
            if home.to or type(command) is Revoke or command.key in moving:
                moving.setdefault(command.key, []).append(number)
            else:
                groups.setdefault(home.place, []).append(number)
        await asyncio.gather(
            *(self._group(commands, each, told, patience) for each in groups.values()),
            *(self._one_by_one(commands, each, told, patience) for each in moving.values()),
        )
        return [told[number] for number in range(len(commands))]

    async def _group(
        self,
        commands: Sequence[Command],
        numbers: Sequence[int],
        told: dict[int, Told],
        patience: float | None,
    ) -> None:
        """Commands for one place, which travel together."""
        table = self.atlas.table
        home = table.home_of(commands[numbers[0]].key)
        try:
            for number in numbers:
                self._check_fresh(commands[number])
            runtime = await self.runtime_of(home.place)
        except LeaseholdError as error:
            told.update(dict.fromkeys(numbers, error))
            return
        homes = [table.home_of(commands[number].key) for number in numbers]
        sent = [_sent(runtime, h, commands[n]) for n, h in zip(numbers, homes, strict=True)]
        answers = await runtime.call_all(sent, patience)
        for number, at, answer in zip(numbers, homes, answers, strict=True):
            told[number] = answer
            if type(answer) is Answer and not self._told(commands[number], answer.reply, at):
                await self._one_by_one(commands, (number,), told, patience)

    async def _one_by_one(
        self,
        commands: Sequence[Command],
        numbers: Sequence[int],
        told: dict[int, Told],
        patience: float | None,
    ) -> None:
        for number in numbers:
            try:
                told[number] = await self.call(commands[number], patience)
            except LeaseholdError as error:
                told[number] = error

    def _check_fresh(self, command: Command) -> None:
        """Nothing is asked for that could not be told. Raises `BackendUnavailable`."""
        if type(command) is Acquire and self.atlas.age >= self.atlas.fresh:
            raise BackendUnavailable(
                "where directories live could not be read for a while: nothing is granted until then"
            )

    def _may_tell(self, command: Command, reply: Reply, sent_by: Home) -> bool:
        """Whether it may be told; False: it is to be asked anew. Raises `BackendUnavailable`."""
        if self._told(command, reply, sent_by):
            return True
        self._check_fresh(command)
        if self.atlas.age >= self.atlas.fresh:
            raise BackendUnavailable("where directories live could not be read for a while")
        return False

    def _told(self, command: Command, reply: Reply, sent_by: Home) -> bool:
        if type(reply) is not Granted or not isinstance(command, Acquire | Renew):
            return True
        home = self.atlas.table.home_of(command.key)
        return may_tell(reply, sent_by, home, self.atlas.age, self.atlas.fresh)

    async def runtime_of(self, place: str) -> AsyncRuntime:
        """Raises `BackendUnavailable` for a placement that this server has not, or can't reach."""
        found = self.places.get(place)
        if found is None:
            raise BackendUnavailable(
                f"this directory lives at the placement {place}, which this server's settings lack"
            )
        if not found.is_ready:
            await found.ready()
        return found

    async def _at(self, home: Home, command: Command, patience: float | None) -> Answer:
        runtime = await self.runtime_of(home.place)
        return await runtime.call(_sent(runtime, home, command), patience)

    async def _amid(self, home: Home, command: Command, patience: float | None) -> Answer:
        """Amid a move: a conversation with both places."""
        plan = plan_for(home, command, self.guards)
        sent, resent = self.now(), False
        try:
            asked = next(plan)
            while True:
                told = await asyncio.gather(*(self._ask(each, patience) for each in asked))
                resent = resent or any(again for _, again in told)
                asked = plan.send([replies for replies, _ in told])
        except StopIteration as end:
            return Answer(end.value, sent, resent)

    async def _ask(self, to: To, patience: float | None) -> tuple[Sequence[Reply] | None, bool]:
        """What came of it, None where any of it has no answer; and whether a copy is under way."""
        try:
            runtime = await self.runtime_of(to.place)
            commands = [_with_inbox(runtime, command) for command in to.commands]
            told = await runtime.call_all(commands, patience)
        except LeaseholdError:
            return None, True
        answers = [each for each in told if type(each) is Answer]
        if len(answers) < len(told):
            return None, True
        return [each.reply for each in answers], any(each.resent for each in answers)


class PlacedBackend:
    """What is read of all places at a time."""

    def __init__(self, placed: PlacedRuntime) -> None:
        self._placed = placed

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """The next keys in use that begin with `prefix`, wherever they are."""
        table = self._placed.atlas.table
        names = {name for home in (table.default, *table.homes.values()) for name in home.places}
        pages = await asyncio.gather(*(self._page(n, prefix, cursor, limit) for n in sorted(names)))
        return one_page(pages, limit)

    async def _page(self, name: str, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """What lives at one place, without guards, and without what is left there of what has moved."""
        placed, table = self._placed, self._placed.atlas.table
        runtime = await placed.runtime_of(name)
        page = await runtime.backend.scan(prefix, cursor, limit)
        items: list[Status] = []
        for status in page.items:
            home = table.home_of(status.key)
            if name not in home.places:
                continue
            if home.to and name == home.place:
                holders = placed.guards.others(status.key, home.epoch, status.holders)
                status = replace(status, holders=holders)
            if status.holders or status.waiters:
                items.append(status)
        return Page(items, page.cursor)


class PlacedKeeper:
    """Gives ids up, wherever they may be. The service keeps no leases of its own."""

    def __init__(self, placed: PlacedRuntime, first: Keeper) -> None:
        self._placed = placed
        self.watch, self.unwatch, self.held = first.watch, first.unwatch, first.held

    def abandon(
        self, key: bytes, lease_id: str, bury: float, keep_until: float | None = None
    ) -> None:
        """See `runtime.port.Keeper`."""
        home = self._placed.atlas.table.home_of(key)
        for name in home.places:
            found = self._placed.places.get(name)
            if found is not None:
                found.keeper.abandon(key, lease_id, bury, keep_until)


def _sent(runtime: AsyncRuntime, home: Home, command: Command) -> Command:
    """A command as a place gets it."""
    if type(command) is Acquire:
        return replace(
            command,
            floor=max(command.floor, home.floor),
            patience=min(command.patience, PATIENCE),
            inbox=runtime.inbox if command.inbox else "",
        )
    return _with_inbox(runtime, command)


def _with_inbox(runtime: AsyncRuntime, command: Command) -> Command:
    if type(command) is Acquire:
        inbox = runtime.inbox if command.inbox else ""
        return replace(command, inbox=inbox, patience=min(command.patience, PATIENCE))
    if type(command) is Renew and command.inbox:
        return replace(command, inbox=runtime.inbox)
    return command


_WIDTH = {"process": 0, "host": 1, "cluster": 2}


def _both(one: Capabilities, other: Capabilities) -> Capabilities:
    """What both of them promise."""
    return Capabilities(
        one.scope if _WIDTH[one.scope] <= _WIDTH[other.scope] else other.scope,
        one.clock and other.clock,
        one.durable and other.durable,
        one.fenced and other.fenced,
        one.push and other.push,
        one.survives & other.survives,
        one.asked and other.asked,
    )
