"""What administrators say of where directories live, and what they are told."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from msgspec import Struct

from dibs.server.audit import Audit
from dibs.server.auth.policy import Principal, Scope
from dibs.server.placement.drain import Drainer
from dibs.server.placement.registry import (
    ORDER,
    RULE,
    DirectoryRecords,
    MoveOrder,
    outdate,
    read_all,
    record_name,
    write_record,
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
from dibs.server.records.port import Records

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
        self.kind = kind


class Restriction(Struct, frozen=True):
    """A restriction, and how far it is carried out."""

    directory: bytes
    rule: Rule
    state: State
    place: str


class Progress(Struct, frozen=True):
    """Where a directory lives, and what its move waits for."""

    place: str
    to: str
    """Empty where it moves nowhere."""
    phase: Literal["settled", "pending", "moving"]
    """Pending until nobody holds, or waits for, any name in it."""
    keys: int
    """Names in use, counted up to 1,000."""
    ends_in: float
    """Seconds until the last of these leases ends unless renewed."""


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
        """All of them, in the order of their directories."""
        found = await read_all(self._records)
        return [self._restricted(found, each) for each in sorted(found.rules)]

    async def restriction(self, directory: bytes) -> Restriction:
        """One. Raises `PlacementRefused`."""
        found = await read_all(self._records)
        if directory not in found.rules:
            raise PlacementRefused(
                "unknown", f"there is no restriction on {directory_shown(directory)}"
            )
        return self._restricted(found, directory)

    async def restrict(self, who: Principal, directory: bytes, rule: Rule) -> None:
        """Set one. Raises `ValueError`, `Unsatisfiable`, `Conflict`, `PlacementRefused`."""
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
            if found.rules.get(directory) != rule:
                await self._audit.write(who, "restriction set", directory, {"rule": rule})
                version = found.versions.get((RULE, directory), 0)
                await write_record(self._records, RULE, directory, rule, version)
            await outdate(self._records)

    async def unrestrict(self, who: Principal, directory: bytes) -> None:
        """Delete one; what lives somewhere stays there. Raises `PlacementRefused`, `Conflict`."""
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
        """Raises `Unsatisfiable` where it, or a directory within it, could live nowhere."""
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

    async def move(self, who: Principal, directory: bytes, to: str) -> None:
        """Have a directory live at a placement.

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
            if found.orders.get(directory) != to:
                await self._audit.write(who, "move ordered", directory, {"to": to})
                version = found.versions.get((ORDER, directory), 0)
                await write_record(self._records, ORDER, directory, MoveOrder(to), version)
            await outdate(self._records)

    async def progress(self, directory: bytes) -> Progress:
        """Where it lives, and how far its move is. Raises `BackendUnavailable`."""
        found = await read_all(self._records)
        home = found.home_of(directory)
        to = home.to or self._ahead(found, directory)
        if not to:
            return Progress(home.place, "", "settled", 0, 0.0)
        keys, ends_in = await self._drainer.in_use(found.homes, directory, home, COUNTED)
        return Progress(home.place, to, "moving" if home.to else "pending", keys, round(ends_in, 3))

    def _ahead(self, found: DirectoryRecords, directory: bytes) -> str:
        """Where it is to move, though it does not yet; empty where it may stay."""
        place = found.home_of(directory).place
        try:
            to = found.wanted(directory, self._router.named)
        except Unsatisfiable:
            return ""
        return to if to != place else ""


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
