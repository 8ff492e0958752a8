"""Restrictions and orders that administrators give, and how far they are carried out."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Literal

import msgspec
from msgspec import Struct

from dibs.errors import DibsError
from dibs.server.audit import Audit
from dibs.server.auth.api_key import utc_time
from dibs.server.auth.policy import Principal, Scope
from dibs.server.placement.drain import Drainer
from dibs.server.placement.registry import (
    ORDER,
    RULE,
    Deadline,
    DirectoryRecords,
    MoveOrder,
    RecordedRule,
    read_all,
    read_existing_list,
    record_name,
    write_list,
)
from dibs.server.placement.router import StoreRouter
from dibs.server.placement.rules import (
    Place,
    Rule,
    Unsatisfiable,
    allowed_places,
    directory_shown,
    objections,
)
from dibs.server.records.port import Conflict, Records

RULES_EACH = 500
"""Restrictions within the directories of an administrator who is not one of everything."""

COUNTED = 1000
"""Names in use that a look at a pending move counts at most."""

type State = Literal["Pending", "Enforced"]


class PlacementRefused(Exception):
    """An administrator's request is refused.

    `unknown`: there is no such restriction or placement. `limit`: there are too many restrictions in the
    directories of this administrator.
    """

    def __init__(self, kind: Literal["unknown", "limit"], text: str) -> None:
        super().__init__(text)
        self.kind: Literal["unknown", "limit"] = kind


class Restriction(Struct, frozen=True):
    """A restriction, and how far it is carried out."""

    directory: bytes
    rule: Rule
    state: State
    place: str


class Progress(Struct, frozen=True):
    """A directory's placement, and how far its move is."""

    place: str
    to: str
    """Empty where it moves nowhere."""
    phase: Literal["settled", "pending", "draining"]
    """While it drains, new acquires are refused. Pending: it does not drain yet, or has no deadline and waits
    until nobody holds, or waits for, any name in it."""
    keys: int
    """Names in use, counted up to 1,000."""
    ends_in: float
    """Seconds until the last of these leases ends unless renewed."""
    until: str | None = None
    """The deadline of a directory that drains: when the leases that remain are revoked."""


class PlacementAdmin:
    """Sets rules and orders moves, for administrators, and reports how far they are carried out."""

    def __init__(
        self, records: Records, audit: Audit, router: StoreRouter, drainer: Drainer
    ) -> None:
        self._records = records
        self._audit = audit
        self._router = router
        self._drainer = drainer
        self._changing = asyncio.Lock()
        """Held from reading to writing, so that what conflicts here writes no line of the audit."""

    @property
    def places(self) -> Sequence[Place]:
        """The placements that this server can reach."""
        return self._router.places

    # -- restrictions -------------------------------------------------------------------------------

    async def restrictions(self) -> Sequence[Restriction]:
        """All restrictions, in the order of their directories."""
        found = await read_all(self._records)
        return [self._restricted(found, each) for each in sorted(found.rules)]

    async def restriction(self, directory: bytes) -> Restriction:
        """The restriction on a directory. Raises `PlacementRefused`."""
        found = await read_all(self._records)
        if directory not in found.rules:
            raise PlacementRefused(
                "unknown", f"there is no restriction on {directory_shown(directory)}"
            )
        return self._restricted(found, directory)

    async def restrict(
        self, who: Principal, directory: bytes, rule: Rule, deadline: float | None
    ) -> None:
        """Set a restriction. `deadline` is that of the moves which it forces, in seconds: see `Deadline`.

        Raises `ValueError`, `Unsatisfiable`, `Conflict`, `PlacementRefused`.
        """
        async with self._changing:
            rule = rule.normalized(self.places)
            found = await read_all(self._records)
            rules = {**found.rules, directory: rule}
            if not who.may_everywhere(Scope.ADMIN) and directory not in found.rules:
                theirs = sum(who.may(Scope.ADMIN, each) for each in found.rules)
                if theirs >= RULES_EACH:
                    raise PlacementRefused(
                        "limit", f"there are {theirs} restrictions in your directories"
                    )
            self._check(found, directory, rules)
            if found.rules.get(directory) != rule or self._has_changed(
                found, RULE, directory, deadline
            ):
                detail = {"rule": rule, "deadline": deadline}
                await self._audit.write(who, "restriction set", directory, detail)
                version = found.versions.get((RULE, directory), 0)
                record = RecordedRule(rule, self._deadline(deadline))
                await write_record(self._records, RULE, directory, record, version)
            await outdate(self._records)

    async def unrestrict(self, who: Principal, directory: bytes) -> None:
        """Delete a restriction. Directories stay where they are. Raises `PlacementRefused`, `Conflict`."""
        async with self._changing:
            found = await read_all(self._records)
            version = found.versions.get((RULE, directory))
            if version is None:
                raise PlacementRefused(
                    "unknown", f"there is no restriction on {directory_shown(directory)}"
                )
            await self._audit.write(who, "restriction deleted", directory)
            await self._records.delete(RULE, record_name(directory), version)

    def _check(
        self, found: DirectoryRecords, directory: bytes, rules: Mapping[bytes, Rule]
    ) -> None:
        """Raises `Unsatisfiable` if the directory, or one within it, could live nowhere."""
        within = {each for each in found.directories if each.startswith(directory)}
        for each in sorted({directory, *within}):
            allowed_places(rules, each, self.places)

    def _restricted(self, found: DirectoryRecords, directory: bytes) -> Restriction:
        home = found.home_of(directory)
        within = {each for each in found.directories if each.startswith(directory)}
        done = all(self._is_done(found, each) for each in {directory, *within})
        state: State = "Enforced" if done else "Pending"
        return Restriction(directory, found.rules[directory], state, home.place)

    def _is_done(self, found: DirectoryRecords, directory: bytes) -> bool:
        """Whether all of a directory's own names are where they may be."""
        home = found.home_of(directory)
        told = objections(found.rules, directory, found.place(home.place))
        return not home.to and next(told, None) is None

    # -- moves --------------------------------------------------------------------------------------

    async def move(self, who: Principal, directory: bytes, to: str, deadline: float | None) -> None:
        """Have a directory live at a placement. `deadline`: in seconds, see `Deadline`.

        Raises `PlacementRefused`, `Unsatisfiable`, `Conflict`.
        """
        place = next((each for each in self.places if each.name == to), None)
        if place is None:
            names = ", ".join(each.name for each in self.places)
            raise PlacementRefused("unknown", f"unknown placement {to!r}; placements: {names}")
        async with self._changing:
            found = await read_all(self._records)
            told = next(objections(found.rules, directory, place), None)
            if told is not None:
                raise Unsatisfiable(f"cannot move {directory_shown(directory)} there: {told}")
            if found.orders.get(directory) != to or self._has_changed(
                found, ORDER, directory, deadline
            ):
                detail = {"to": to, "deadline": deadline}
                await self._audit.write(who, "move ordered", directory, detail)
                version = found.versions.get((ORDER, directory), 0)
                record = MoveOrder(to, self._deadline(deadline))
                await write_record(self._records, ORDER, directory, record, version)
            await outdate(self._records)

    def _deadline(self, seconds: float | None) -> Deadline:
        """A deadline that is set now."""
        return Deadline(seconds, self._router.stamp() / 1e6)

    def _has_changed(
        self, found: DirectoryRecords, kind: str, directory: bytes, seconds: float | None
    ) -> bool:
        return found.deadlines[kind, directory].seconds != seconds

    async def progress(self, directory: bytes) -> Progress:
        """A directory's placement, and how far its move is. Raises `BackendUnavailable`."""
        found = await read_all(self._records)
        home = found.home_of(directory)
        to = home.to or self._ahead(found, directory)
        keys, ends_in = 0, 0.0
        try:
            keys, ends_in = await self._drainer.in_use(found.homes, directory, home, COUNTED)
        except DibsError:
            if to:
                raise
        phase: Literal["settled", "pending", "draining"] = "pending" if to else "settled"
        until = inf
        if home.to:
            phase = "draining"
            until = found.deadline_of(directory, to).after(home.since)
        ends_at = None if until == inf else utc_time(until, "milliseconds")
        return Progress(home.place, to, phase, keys, round(ends_in, 3), ends_at)

    def _ahead(self, found: DirectoryRecords, directory: bytes) -> str:
        """The destination of a move that has not begun; empty if there is none."""
        place = found.home_of(directory).place
        try:
            to = found.wanted(directory, self._router.named)
        except Unsatisfiable:
            return ""
        return to if to != place else ""


async def write_record(
    records: Records, kind: str, directory: bytes, value: Struct, expected: int
) -> None:
    """Write a rule or an order if it still has that version. Raises `Conflict`, `BackendUnavailable`."""
    await records.put(kind, record_name(directory), msgspec.json.encode(value), expected)


async def outdate(records: Records) -> None:
    """Make every server's next step of a move fail if it is based on what was read before.

    Servers read the list first, then rules and orders, and write the list by compare-and-set. So each step
    after this one takes into account the rules and orders that were written before.
    """
    while True:
        listing, version = await read_existing_list(records)
        with suppress(Conflict):
            return await write_list(records, listing, version)


@asynccontextmanager
async def moving_directories(
    router: StoreRouter, records: Records, audit: Audit
) -> AsyncGenerator[PlacementAdmin]:
    """While it is entered, the table is kept fresh, and directories move."""
    drainer = Drainer(router, records, audit)
    tasks = [
        asyncio.create_task(router.reader.keep(), name="dibs placements"),
        asyncio.create_task(drainer.run(), name="dibs moves"),
    ]
    try:
        yield PlacementAdmin(records, audit, router, drainer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await router.reachability.close()
