"""A Cluster: a batch is grouped by slot, and each node gets its groups in one go."""

import random
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError, IncompatibleVersion
from dibs.model import Command, Notification, Reply
from dibs.stores.redis import scanning
from dibs.stores.redis.connection import Dial, HiredisError, Link, ReplyError, connect, pack
from dibs.stores.redis.errors import broken, code_of, explain
from dibs.stores.redis.ledger import (
    Call,
    CallContext,
    Outcome,
    is_unprepared,
    prepare,
    store_key,
)
from dibs.stores.redis.server import Server, failed
from dibs.stores.redis.url import Endpoint, Settings

SLOTS = 16384

ATTEMPTS = 5
"""Times that a part is sent, at most."""

_REDIRECTIONS = {"MOVED", "ASK"}
_AWAY = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}


class Part:
    """The commands of one slot, in their order, and what has become of them."""

    __slots__ = ("answer", "asking", "call", "commands", "error", "places", "slot", "unknown")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.places: list[int] = []
        """Where in the batch the commands stand."""
        self.commands: list[Command] = []
        self.call = Call([], [])
        self.asking: Endpoint | None = None
        """The node to which this slot is just moving, where it is to be tried once."""
        self.answer: Any = None
        self.error: DibsError | None = None
        self.unknown = False
        """It may have been applied, though no answer came."""

    def fail(self, error: DibsError, *, unknown: bool = False) -> None:
        """Nothing came of it in this attempt."""
        self.error = error
        self.unknown = self.unknown or unknown

    @property
    def is_settled(self) -> bool:
        """It has an answer, and sending it again would not bring another."""
        answer = self.answer
        if not isinstance(answer, ReplyError):
            return True
        return not (is_unprepared(answer) or code_of(answer) in _REDIRECTIONS)


type UnderWay = list[tuple[Link, list[Part], Awaitable[list[Any]]]]


class Cluster:
    """All batches over one connection for each node, made when it is first needed."""

    def __init__(self, settings: Settings, dial: Dial, context: CallContext) -> None:
        self._settings = settings
        self._dial = dial
        self._context = context
        self._owners: dict[int, Endpoint] = {}
        """Who serves each slot, as one node told, and redirections since."""
        self._outdated = True
        self._links: dict[Endpoint, Link] = {}
        self.arrived_at: Callable[[Endpoint], None] | None = None
        """Never called: a message reaches all nodes, so listeners may stay where they are."""

    async def open(self) -> None:
        """Learn who serves what."""
        if self._outdated:
            await self._learn()

    async def dial(self) -> Link:
        """A connection to any node; messages reach all of them."""
        errors: list[DibsError] = []
        for endpoint in [*self._nodes(), *self._settings.endpoints]:
            try:
                return await connect(self._settings, self._dial, endpoint)
            except BackendUnavailable as error:
                errors.append(error)
        raise BackendUnavailable(
            "no node of the Cluster can be reached: " + "; ".join(dict.fromkeys(map(str, errors)))
        )

    def _nodes(self) -> list[Endpoint]:
        """All nodes that serve slots, in random order."""
        nodes = list(dict.fromkeys(self._owners.values()))
        random.shuffle(nodes)
        return nodes

    async def _learn(self) -> None:
        """Have any node tell who serves which slot; best one that we are connected to."""
        for link in list(self._links.values()):
            if link.usable and await self._learn_by(link):
                return
        link = await self.dial()
        try:
            if not await self._learn_by(link):
                raise BackendUnavailable(f"{link.endpoint} hung up; check the network")
        finally:
            link.close()

    async def _learn_by(self, link: Link) -> bool:
        try:
            (answer,) = await link.ask(pack((b"CLUSTER", b"SLOTS")))
        except (OSError, HiredisError):
            link.close()
            return False
        if isinstance(answer, ReplyError):
            raise explain(answer, link.endpoint)
        self._owners = read_slots(answer, link.endpoint)
        self._outdated = False
        return True

    async def _link(self, endpoint: Endpoint) -> Link:
        link = self._links.get(endpoint)
        if link is None or not link.usable:
            link = await connect(self._settings, self._dial, endpoint)
            self._links[endpoint] = link
        return link

    # -- batches ------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch: one call for each slot, and one round trip for each node."""
        parts = self._split(commands)
        again = parts
        for _ in range(ATTEMPTS):
            if self._outdated:
                await self._learn()
            await self._send(again)
            again = [part for part in again if not part.is_settled]
            if not again:
                break
        return self._together(parts, len(commands))

    def _split(self, commands: Sequence[Command]) -> list[Part]:
        parts: dict[int, Part] = {}
        for place, command in enumerate(commands):
            slot = slot_of(store_key(command.key))
            part = parts.get(slot) or parts.setdefault(slot, Part(slot))
            part.places.append(place)
            part.commands.append(command)
        for part in parts.values():
            part.call = self._context.call(part.commands)
        return list(parts.values())

    async def _send(self, parts: Sequence[Part]) -> None:
        """Send each part to its node, then wait for all answers."""
        routes: dict[Endpoint | None, list[Part]] = {}
        for part in parts:
            part.error = part.answer = None
            routes.setdefault(part.asking or self._owners.get(part.slot), []).append(part)
        under_way: UnderWay = []
        try:
            for endpoint, its_parts in routes.items():
                await self._ask(endpoint, its_parts, under_way)
            for link, its_parts, answers in under_way:
                try:
                    await self._hear(link, its_parts, answers)
                except (OSError, HiredisError) as error:
                    self._lost(link, its_parts, error)
        except BaseException:
            for link, *_ in under_way:
                link.close()
            raise

    async def _ask(self, endpoint: Endpoint | None, parts: list[Part], under_way: UnderWay) -> None:
        try:
            if endpoint is None:
                raise BackendUnavailable("nobody in the Cluster serves this slot")
            link = await self._link(endpoint)
        except DibsError as error:
            self._outdated = True
            return _fail(parts, error)
        data = []
        for part in parts:
            if part.asking is not None:
                data.append(pack((b"ASKING",)))
            data.append(part.call.request(link))
        try:
            under_way.append((link, parts, link.ask(b"".join(data), len(data))))
        except OSError as error:
            self._lost(link, parts, error)

    async def _hear(self, link: Link, parts: Sequence[Part], answers: Awaitable[list[Any]]) -> None:
        found = iter(await answers)
        for part in parts:
            if part.asking is not None:
                next(found)
            part.answer = next(found)
            if isinstance(part.answer, ReplyError):
                self._take_refusal(part, part.answer, link)
        unprepared = [part for part in parts if is_unprepared(part.answer)]
        refusal = await prepare(link, unprepared[0].answer) if unprepared else None
        for part in unprepared if refusal is not None else ():
            part.answer = refusal
            part.fail(explain(part.answer, link.endpoint))

    def _lost(self, link: Link, parts: Sequence[Part], error: Exception) -> None:
        link.close()
        self._outdated = True
        _fail(parts, broken(error, link.endpoint), unknown=True)

    def _take_refusal(self, part: Part, answer: ReplyError, link: Link) -> None:
        """The node did nothing, and says why; a redirection mends that."""
        code, here = code_of(answer), link.endpoint
        part.fail(explain(answer, here))
        if code in _REDIRECTIONS:
            part.fail(BackendUnavailable(f"{here}: slot {part.slot} is on the move ({answer})"))
            kind, slot, there = read_redirection(str(answer), here)
            part.asking = there if kind == "ASK" else None
            if kind == "MOVED":
                self._owners[slot] = there
                self._outdated = True
        elif code in _AWAY:
            self._outdated = True
            link.close()

    def _together(self, parts: Iterable[Part], count: int) -> Outcome:
        """The replies of all parts, in the order of the batch.

        Raises where nothing was applied, and where it isn't known whether something was: the commands
        can then be sent again. Else what failed costs the others nothing.
        """
        parts = list(parts)
        errors = [part.error for part in parts if part.error is not None]
        unknown = [part.error for part in parts if part.error is not None and part.unknown]
        newer = [error for error in errors if isinstance(error, IncompatibleVersion)]
        if unknown or newer:
            raise (unknown or newer)[0]
        if errors and len(errors) == len(parts):
            unavailable = [error for error in errors if isinstance(error, BackendUnavailable)]
            raise (unavailable or errors)[0]
        replies: dict[int, Reply] = {}
        notifications: list[Notification] = []
        for part in parts:
            found: list[Reply] = []
            if part.error is None:
                found, more = self._context.read(part.answer, part.commands)
                notifications += more
            else:
                found += [failed(part.error) for _ in part.commands]
            replies.update(zip(part.places, found, strict=True))
        return [replies[place] for place in range(count)], notifications

    # -- the rest -----------------------------------------------------------------------------------

    async def names(self) -> set[bytes]:
        """The names of all keys of ours, on all nodes."""
        await self._learn()
        found: set[bytes] = set()
        for endpoint in self._nodes():
            found |= await scanning.names_on(await connect(self._settings, self._dial, endpoint))
        return found

    def close(self) -> None:
        """Hang up."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def after_fork(self) -> None:
        """In the child: let go without a word."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close_in_child()


def _fail(parts: Sequence[Part], error: DibsError, *, unknown: bool = False) -> None:
    for part in parts:
        part.fail(error, unknown=unknown)


def router(settings: Settings, dial: Dial, context: CallContext) -> Server | Cluster:
    """What brings batches to where they belong, and back."""
    kind = Cluster if settings.topology == "cluster" else Server
    return kind(settings, dial, context)


# ---- slots ----------------------------------------------------------------------------------------


def slot_of(name: bytes) -> int:
    """The slot of a Redis key: of what stands between its first braces, if anything does."""
    start = name.find(b"{")
    if start >= 0:
        end = name.find(b"}", start + 1)
        if end > start + 1:
            name = name[start + 1 : end]
    return crc_hqx(name, 0) % SLOTS


def read_slots(answer: Any, teller: Endpoint) -> dict[int, Endpoint]:
    """Who serves each slot, by an answer to `CLUSTER SLOTS`.

    A node without an address is the one that told.
    """
    owners: dict[int, Endpoint] = {}
    for first, last, primary, *_ in answer:
        host, port = primary[0], int(primary[1])
        endpoint = Endpoint(host.decode() if host and host != b"?" else teller.host, port)
        owners.update(dict.fromkeys(range(first, last + 1), endpoint))
    return owners


def read_redirection(said: str, teller: Endpoint) -> tuple[str, int, Endpoint]:
    """`MOVED 3999 host:port`: what is to be done, for which slot, and where."""
    kind, slot, address = said.split()[:3]
    host, _, port = address.rpartition(":")
    return kind, int(slot), Endpoint(host or teller.host, int(port))
