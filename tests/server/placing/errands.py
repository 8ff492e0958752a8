"""Two movers and an administrator over the same records, in any order of what each reads and writes.

The movers, the desk and the records are the real ones; what the stores would say is left out, as `model`
goes through that: there one name has one home, which takes one step after the other. Here it is looked
whether that is so, whichever directory's record says where a name lives: each write either leaves a name
where it was, or is the next step of its home. And no name is ever taken to where it may not be.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from dibs.errors import BackendUnavailable
from dibs.server.audit import Audit
from dibs.server.placing.choice import Unsatisfiable, objections
from dibs.server.placing.desk import Desk, Unknown
from dibs.server.placing.documents import HOME, read_all, read_table, write_listing
from dibs.server.placing.home import Home
from dibs.server.placing.listing import Listed, Listing
from dibs.server.placing.mover import SERVICE, Mover
from dibs.server.placing.placement import Place
from dibs.server.placing.progress import Standing
from dibs.server.placing.rules import Rule
from dibs.server.placing.table import Table
from dibs.server.records.memory import MemoryRecords
from dibs.server.records.port import Record

PLACES = {
    name: Place(name, "", region) for name, region in zip("ABC", ("DE", "US", "FR"), strict=True)
}
LISTING = Listing(
    tuple(Listed(each.name, (f"at {each.name}",), region=each.region) for each in PLACES.values()),
    "A",
    3.0,
)
DIRECTORIES = (b"", b"a/", b"a/b/", b"a/b/c/", b"a/d/")
RULES = (Rule(("XE",)), Rule((), ("XE",)), Rule(("XE",), ("FR",)), Rule((), ("DE",)))


class Astray(Exception):
    """What must not be."""


class Crashed(Exception):
    """A mover has, and starts anew."""


class Turns:
    """Who goes next: one chooses, and some are slow."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._haste = {name: self.chance.choice((1, 1, 9)) for name in ("one", "two", "admin")}

    async def mine(self, name: str) -> None:
        """Wait for one's turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((name, turn))
        await turn

    async def run(self, *work: Any) -> None:
        """Until all is done. Raises what any of it raises."""
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            while alive := sum(not each.done() for each in tasks):
                if len(self._waiting) < alive:
                    await asyncio.sleep(0)
                    continue
                hastes = [self._haste[name] for name, _ in self._waiting]
                (at,) = self.chance.choices(range(len(hastes)), hastes)
                self._waiting.pop(at)[1].set_result(None)
                if self.chance.random() < 0.1:  # now and then nobody is disturbed for a while
                    self._haste = {name: self.chance.choice((1, 1, 30)) for name in self._haste}
            for each in tasks:
                each.result()
        finally:
            for each in tasks:
                each.cancel()


class Watched(MemoryRecords):
    """The records as one of them sees them: whatever is asked or written waits for its turn."""

    def __init__(self, url: str, name: str, turns: Turns, watch: "Watch", faults: float) -> None:
        super().__init__(url)
        self._name, self._turns, self._watch, self._faults = name, turns, watch, faults

    async def all(self, kind: str) -> Sequence[Record]:
        await self._turns.mine(self._name)
        return await super().all(kind)

    async def get(self, kind: str, name: str) -> Record | None:
        await self._turns.mine(self._name)
        return await super().get(kind, name)

    async def put(self, kind: str, name: str, value: bytes, expected: int) -> Record:
        await self._turns.mine(self._name)
        self._may_fail()
        record = await super().put(kind, name, value, expected)
        if kind == HOME:
            await self._watch.look()
        self._may_fail()
        return record

    def _may_fail(self) -> None:
        """Before it is written, or after."""
        if self._turns.chance.random() < self._faults:
            raise self._turns.chance.choice((Crashed, BackendUnavailable))("here")


class Watch:
    """Looks at where each name lives, after each write."""

    def __init__(self, url: str) -> None:
        self._records = MemoryRecords(url)
        self.table = Table(LISTING, {})
        self.rules: dict[bytes, Rule] = {}
        """Those that are in force: whoever has set one has been told so."""
        self.phases: set[str] = set()
        """All that were seen."""

    async def look(self) -> None:
        """Raises `Astray`."""
        before, self.table = self.table, await read_table(self._records, 0.0)
        if self.table.has_forgotten(before):
            raise Astray("something was forgotten")
        for directory in DIRECTORIES:
            key = b"lock:" + directory + b"x"
            was, now = before.home_of(key), self.table.home_of(key)
            if not _follows(was, now):
                raise Astray(f"{key!r}: {now} is no next step of {was}")
            if self._may_be(directory, was) and not self._may_be(directory, now):
                raise Astray(f"{key!r} is taken to where it may not be: {now} after {was}")
            self.phases.add(now.phase)

    def _may_be(self, directory: bytes, home: Home) -> bool:
        told = (objections(self.rules, directory, PLACES[each]) for each in home.places)
        return all(next(each, None) is None for each in told)


def _follows(was: Home, now: Home) -> bool:
    """Whether a home comes right after another, or is the same."""
    if (was.where, was.floor) == (now.where, now.floor) and now.step >= was.step:
        return True
    following = {
        "settled": lambda: was.begun(now.to, 0.0),
        "moving": lambda: was.seal(0.0),
        "sealed": lambda: was.arrived(now.floor - (1 << 32), 0.0),
        "clearing": lambda: was.cleared(0.0),
    }[was.phase]()
    return (following.where, following.step, following.floor) == (now.where, now.step, now.floor)


class Walker(Mover):
    """A mover that finds nothing in its way."""

    async def look(self, *_: Any, **__: Any) -> Standing:
        return Standing(last_token=7)

    async def _prolong(self, *_: Any, **__: Any) -> None:
        pass

    async def _take_guards_away(self, *_: Any, **__: Any) -> bool:
        return True

    async def _token_at(self, *_: Any, **__: Any) -> int:
        return 7


def _walker(records: MemoryRecords, here: str) -> Walker:
    """One that has waited long enough each time, and reaches these placements."""
    moments = iter(range(0, 10**9, 1000))
    placed: Any = SimpleNamespace(
        ways=SimpleNamespace(
            named=dict.fromkeys(here), places=tuple(PLACES[each] for each in here)
        ),
        now=lambda: float(next(moments)),
    )
    return Walker(placed, records, Audit(records), probe=b"")


async def _moves(mover: Mover, times: int) -> None:
    for _ in range(times):
        with suppress(Crashed, BackendUnavailable):
            await mover.go_on()


async def _says(desk: Desk, watch: Watch, chance: random.Random, times: int) -> None:
    """An administrator, who sets and deletes restrictions and moves directories."""
    for _ in range(times):
        directory = chance.choice(DIRECTORIES)
        with suppress(Unknown, Unsatisfiable):
            match chance.choice(("move", "move", "rule", "no rule")):
                case "move":
                    await desk.move(SERVICE, directory, chance.choice("ABC"))
                case "rule":
                    watch.rules.pop(directory, None)
                    rule = chance.choice(RULES)
                    await desk.restrict(SERVICE, directory, rule)
                    watch.rules[directory] = rule
                case _:
                    watch.rules.pop(directory, None)
                    await desk.unrestrict(SERVICE, directory)


async def errands(seed: int) -> Watch:
    """One way through it all, to where nothing is left to be done. Raises `Astray`."""
    url = f"memory://{uuid4()}"
    turns, watch = Turns(seed), Watch(url)
    one, two = (Watched(url, name, turns, watch, faults=0.05) for name in ("one", "two"))
    three = Watched(url, "admin", turns, watch, faults=0.0)
    await turns.run(write_listing(three, LISTING, 0))
    last = _walker(three, "ABC")
    desk = Desk(three, Audit(three), last._placed, last)
    await turns.run(
        _moves(_walker(one, "ABC"), 12),
        _moves(_walker(two, turns.chance.choice(("ABC", "AB"))), 12),
        _says(desk, watch, turns.chance, 8),
    )
    await turns.run(_moves(last, 60))
    found = await read_all(MemoryRecords(url))
    for each in found.directories:
        home = found.home_of(each)
        if home.phase != "settled" or found.wanted(each, "ABC") != home.place:
            raise Astray(f"{each!r} has not arrived: {home}")
    return watch
