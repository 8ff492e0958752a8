"""Which server a batch goes to: the only one, the master that Sentinels name, or the nodes of a Cluster.

On a Cluster a batch has a part for each slot, else it is one part. Each server gets its parts in one go. A
part that is refused is sent again if there is a remedy: the ledger is loaded, the slot is somewhere else now,
a full server can still be looked at, an ACL forbids some of its keys.
"""

import random
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from dibs.errors import BackendUnavailable, DibsError, IncompatibleVersion
from dibs.model import Command, Finding, Notification, Page, Reply
from dibs.stores.port import failed_reply
from dibs.stores.redis import health, scanning
from dibs.stores.redis.connection import (
    Dial,
    HiredisError,
    Link,
    ReplyError,
    connect,
    connect_to_master,
    pack,
)
from dibs.stores.redis.errors import broken, code_of, explain
from dibs.stores.redis.ledger import CallContext, is_unprepared, prepare, store_key
from dibs.stores.redis.scanning import Listings
from dibs.stores.redis.url import Endpoint, Settings

SLOTS = 16384

ATTEMPTS = 6
"""Times that a part is sent, at most."""

LATE = 0.9
"""Seconds in which a node of a Cluster must let us connect, and answer: so long a hung one delays the others.

It is less than the time that every batch has, `LEAST` in `runtime/batcher.py`.
"""

AVOIDED = 2
"""A node that failed is sent nothing for so many times as long as it was waited for."""

_REDIRECTIONS = {"MOVED", "ASK"}
_AWAY = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}
"""With these answers another server may be the one to ask."""


@dataclass(slots=True)
class Part:
    """The commands of one slot, in their order, and what has become of them."""

    slot: int
    numbers: list[int] = field(default_factory=list)
    """Where in the batch the commands stand."""
    commands: list[Command] = field(default_factory=list)
    asking: Endpoint | None = None
    """The node to which this slot is just moving, where it is to be tried once."""
    full: DibsError | None = None
    """The server is out of memory and runs no Function. A script can run until it writes."""
    answer: Any = None
    error: DibsError | None = None
    again: bool = False
    """It was not applied, and sending it again can bring another answer."""
    unknown: bool = False
    """It may have been applied, though no answer came."""

    @property
    def is_partly_forbidden(self) -> bool:
        """This user may not touch some of its keys. That costs the others nothing."""
        if self.again or not isinstance(self.answer, ReplyError):
            return False
        is_refused = code_of(self.answer) == "NOPERM"
        return is_refused and len({command.key for command in self.commands}) > 1

    def fail(self, error: DibsError, *, unknown: bool = False) -> None:
        """Note that nothing came of it."""
        self.error = error
        self.unknown = self.unknown or unknown


class Router:
    """Applies batches over one connection for each server, made when it is first needed.

    Notifications that come with the replies are given to `hand_on`. `arrived_at` is called with the address
    of each new connection to the only server: after a failover it is another. A notification reaches all
    nodes of a Cluster, so a subscription can stay at any of them.
    """

    def __init__(
        self,
        settings: Settings,
        dial: Dial,
        context: CallContext,
        listings: Listings,
        hand_on: Callable[[list[Notification]], None],
        arrived_at: Callable[[Endpoint], None],
    ) -> None:
        self._settings = settings
        self._dial = dial
        self._context = context
        self._listings = listings
        self._is_cluster = settings.topology == "cluster"
        self._limit = LATE if self._is_cluster else settings.timeout
        """Seconds in which an answer must come."""
        self._owners: dict[int, Endpoint] = {}
        """Who serves each slot of a Cluster, as one node told, and redirections since."""
        self._outdated = self._is_cluster
        self._avoided: dict[Endpoint, float] = {}
        """Nodes that failed and have not answered since, and until when they are sent nothing."""
        self._trials = 0
        """Batches that try to reach such a node again: one at a time, so that others go on."""
        self._links: dict[Endpoint | None, Link] = {}
        """None is the only server, or the current master."""
        self._hand_on = hand_on
        self._arrived_at = arrived_at

    async def open(self) -> None:
        """Connect to the server, or learn who serves what in the Cluster."""
        if not self._is_cluster:
            await self._link(None)
        elif self._outdated:
            await self._learn()

    @property
    def link(self) -> Link | None:
        """The connection to the only server, if it stands."""
        return self._standing(None)

    def _standing(self, node: Endpoint | None) -> Link | None:
        link = self._links.get(node)
        return link if link is not None and link.usable else None

    async def dial(self) -> Link:
        """Another connection, to the server or to any node."""
        settings = self._settings
        if settings.topology == "sentinel":
            return await connect_to_master(settings, self._dial)
        if not self._is_cluster:
            return await connect(settings, self._dial, settings.endpoints[0])
        return await self._by_any(self._connect)

    async def _connect(self, node: Endpoint, limit: float = LATE) -> Link:
        began = monotonic()
        if limit <= 0:
            raise BackendUnavailable(f"{node} was not asked, because other nodes hang")
        if not self._owners and len(self._settings.endpoints) == 1:
            limit = inf  # there is no other to ask
        is_trial = node in self._avoided
        self._trials += is_trial
        try:
            return await connect(self._settings, self._dial, node, limit)
        except BaseException:
            self._outdated = True
            self._avoid(node, began)
            raise
        finally:
            self._trials -= is_trial

    def _avoid(self, node: Endpoint, began: float) -> None:
        """It has failed to do what was asked at `began`."""
        now = monotonic()
        self._avoided[node] = now + AVOIDED * (now - began)

    async def _link(self, node: Endpoint | None, until: float = inf) -> Link:
        """The connection to it; a new one must be made by `until`."""
        link = self._standing(node)
        if link is not None:
            return link
        limit = until - monotonic()
        made = await (self.dial() if node is None else self._connect(node, limit))
        link = self._standing(node)
        if link is not None:
            made.close()  # another task was faster, and uses it already
            return link
        if node in self._links:
            self._links[node].close()
        self._links[node] = made
        if node is None:
            self._arrived_at(made.endpoint)
        return made

    # -- batches ------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Apply a batch: one call for each part, and one round trip for each server."""
        if not commands:
            return ()
        link = self.link
        if link is not None:
            answer = await self._ask_one(link, commands)
            if not isinstance(answer, ReplyError):
                return self.read(answer, commands)
        sent = parts = self._split(commands)
        for _ in range(ATTEMPTS):
            if self._outdated:
                await self._learn()
            await self._send(sent)
            sent = [part for part in sent if part.again]
            for part in [part for part in parts if part.is_partly_forbidden]:
                pairs = zip(part.numbers, part.commands, strict=True)
                pieces = [Part(part.slot, [number], [command]) for number, command in pairs]
                parts.remove(part)
                parts += pieces
                sent += pieces
            if not sent:
                break
        return self._together(parts, len(commands))

    def request(self, link: Link, commands: Sequence[Command]) -> bytes:
        """The bytes that apply a batch at the only server."""
        return self._context.call(commands).request(link.has_functions)

    def read(self, answer: Any, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies in the answer to a call, and hand on the notifications."""
        replies, notifications = self._context.read(answer, commands)
        if notifications:
            self._hand_on(notifications)
        return replies

    async def _ask_one(self, link: Link, commands: Sequence[Command]) -> Any:
        """Ask the only server. Nearly all batches end here, so this is short."""
        try:
            return (await link.ask(self.request(link, commands), 1, self._limit))[0]
        except BaseException as error:
            link.close()
            if isinstance(error, OSError | HiredisError):
                raise broken(error, link.endpoint) from error
            raise

    def _split(self, commands: Sequence[Command]) -> list[Part]:
        if not self._is_cluster:
            return [Part(0, list(range(len(commands))), list(commands))]
        parts: dict[int, Part] = {}
        for number, command in enumerate(commands):
            slot = slot_of(store_key(command.key))
            part = parts.get(slot) or parts.setdefault(slot, Part(slot))
            part.numbers.append(number)
            part.commands.append(command)
        return list(parts.values())

    async def _send(self, parts: Sequence[Part]) -> None:
        """Send each part to its server, then wait for all answers.

        Servers that are still to be connected to come last, and have `LATE` seconds for that together.
        """
        routes: dict[Endpoint | None, list[Part]] = {}
        for part in parts:
            part.error, part.answer, part.again = None, None, False
            routes.setdefault(part.asking or self._owners.get(part.slot), []).append(part)
        until = monotonic() + LATE
        asked: list[tuple[Link, list[Part], Awaitable[list[Any]], float]] = []
        try:
            for node in sorted(routes, key=lambda node: self._standing(node) is None):
                try:
                    self._check(node)
                    link = await self._link(node, until)
                except DibsError as error:
                    for part in routes[node]:
                        part.fail(error)
                else:
                    began, answers = monotonic(), self._ask(link, routes[node])
                    asked.append((link, routes[node], answers, began))
            for each in asked:
                await self._hear(*each)
        except BaseException:
            for link, its_parts, *_ in asked:
                if its_parts[0].answer is None:
                    link.close()
            raise

    def _check(self, node: Endpoint | None) -> None:
        """Raise `BackendUnavailable` if there is no use in asking."""
        if node is None and self._is_cluster:
            self._outdated = True
            raise BackendUnavailable("nobody in the Cluster serves this slot")
        if node in self._avoided and (self._trials or monotonic() < self._avoided[node]):
            raise BackendUnavailable(f"{node} did not answer in time; check it and the network")

    def _ask(self, link: Link, parts: Sequence[Part]) -> Awaitable[list[Any]]:
        data = []
        for part in parts:
            if part.asking is not None:
                data.append(pack((b"ASKING",)))
            call = self._context.call(part.commands)
            data.append(call.request(link.has_functions and part.full is None))
        return link.ask(b"".join(data), len(data), self._limit)

    async def _hear(
        self, link: Link, parts: Sequence[Part], answers: Awaitable[list[Any]], began: float
    ) -> None:
        """Take the answers to what was asked at `began`."""
        try:
            await self._take(link, parts, iter(await answers))
            self._avoided.pop(link.endpoint, None)
        except BaseException as error:
            link.close()
            self._outdated = self._is_cluster
            if isinstance(error, TimeoutError) or not isinstance(error, Exception):
                self._avoid(link.endpoint, began)  # it is silent: whatever else it is, took no time
            if not isinstance(error, OSError | HiredisError):
                raise
            for part in parts:
                part.fail(broken(error, link.endpoint), unknown=True)

    async def _take(self, link: Link, parts: Sequence[Part], found: Iterator[Any]) -> None:
        unprepared: list[Part] = []
        for part in parts:
            if part.asking is not None:
                next(found)
            part.answer = next(found)
            if is_unprepared(part.answer):
                unprepared.append(part)
            elif isinstance(part.answer, ReplyError):
                self._take_refusal(part, part.answer, link)
        lack = unprepared[0].answer if unprepared else None
        refusal = None if lack is None else await prepare(link, lack, self._limit)
        for part in unprepared:
            part.again = refusal is None
            self._take_refusal(part, refusal or part.answer, link)

    def _take_refusal(self, part: Part, answer: ReplyError, link: Link) -> None:
        """The server did nothing, and says why."""
        code, here = code_of(answer), link.endpoint
        part.error = part.full or explain(answer, here)
        if code in _REDIRECTIONS and self._is_cluster:
            part.error = BackendUnavailable(f"{here}: slot {part.slot} is on the move ({answer})")
            part.again = True
            kind, slot, there = read_redirection(str(answer), here)
            part.asking = there if kind == "ASK" else None
            if kind == "MOVED":
                self._owners[slot] = there
                self._outdated = True
        elif code == "OOM" and part.full is None and link.has_functions:
            part.full, part.again = part.error, True
        elif code in _AWAY:
            self._outdated = self._is_cluster
            link.close()

    def _together(self, parts: Sequence[Part], count: int) -> list[Reply]:
        """The replies of all parts, in the order of the batch. Notifications are handed on in any case.

        Raises where nothing was applied, and where it isn't known whether something was: the commands
        can then be sent again. Otherwise a part that failed costs the others nothing.
        """
        replies: dict[int, Reply] = {}
        for part in parts:
            found: list[Reply] = (
                [failed_reply(part.error)] * len(part.commands) if part.error else []
            )
            found = found or self.read(part.answer, part.commands)
            replies.update(zip(part.numbers, found, strict=True))
        errors = [part.error for part in parts if part.error is not None]
        unknown = [part.error for part in parts if part.error is not None and part.unknown]
        newer = [error for error in errors if isinstance(error, IncompatibleVersion)]
        if unknown or newer:
            raise (unknown or newer)[0]
        if errors and len(errors) == len(parts):
            unavailable = [error for error in errors if isinstance(error, BackendUnavailable)]
            raise (unavailable or errors)[0]
        return [replies[number] for number in range(count)]

    # -- a Cluster's nodes --------------------------------------------------------------------------

    def _nodes(self) -> list[Endpoint]:
        """All nodes that serve slots, in random order."""
        nodes = list(dict.fromkeys(self._owners.values()))
        random.shuffle(nodes)
        return nodes

    async def _by_any[T](self, use: Callable[[Endpoint], Awaitable[T]]) -> T:
        """What comes of it at the first node that is not away; the one that failed last comes last."""
        errors: list[str] = []
        nodes = dict.fromkeys([*self._nodes(), *self._settings.endpoints])
        for node in sorted(nodes, key=lambda node: self._avoided.get(node, 0.0)):
            try:
                return await use(node)
            except BackendUnavailable as error:
                errors.append(str(error))
        raise BackendUnavailable("no node of the Cluster can be reached: " + "; ".join(errors))

    async def _learn(self) -> None:
        """Have any node tell who serves which slot; best one that we are connected to."""
        for link in list(self._links.values()):
            if link.usable:
                with suppress(BackendUnavailable):
                    return await self._learn_by(link)
        return await self._by_any(self._learn_at)

    async def _learn_at(self, node: Endpoint) -> None:
        link = await self._connect(node)
        try:
            await self._learn_by(link)
        finally:
            link.close()

    async def _learn_by(self, link: Link) -> None:
        began = monotonic()
        try:
            (answer,) = await link.ask(pack((b"CLUSTER", b"SLOTS")), 1, LATE)
        except (OSError, HiredisError) as error:
            link.close()
            self._avoid(link.endpoint, began)
            raise broken(error, link.endpoint) from error
        if isinstance(answer, ReplyError):
            raise explain(answer, link.endpoint)
        if not answer:
            link.close()
            raise BackendUnavailable(f"{link.endpoint} knows of no slots: it is in no Cluster")
        self._owners = read_slots(answer, link.endpoint)
        self._outdated = False

    # -- the rest -----------------------------------------------------------------------------------

    async def scan(self, prefix: bytes, cursor: bytes | None, limit: int) -> Page:
        """Return the next keys that are held or waited for; see `AsyncConnection.scan`."""
        keys = await self._listings.keys(self._names, prefix, cursor)
        return await scanning.scan(keys, self.apply, limit)

    async def examine(self) -> Sequence[Finding]:
        """Return what the server reports about itself, or any node of a Cluster."""
        settings = self._settings
        return await health.examine(await self.dial(), settings.holdoff, settings.timeout)

    async def _names(self) -> set[bytes]:
        """The names of all keys of ours, on all nodes."""
        if not self._is_cluster:
            return await scanning.names_on(await self.dial(), self._settings.timeout)
        await self._learn()
        found: set[bytes] = set()
        for node in self._nodes():
            found |= await scanning.names_on(await self._connect(node), self._settings.timeout)
        return found

    def close(self) -> None:
        """Hang up."""
        for link in self._forget():
            link.close()

    def after_fork(self) -> None:
        """In the child: drop the connections without a word."""
        for link in self._forget():
            link.close_in_child()

    def _forget(self) -> Iterable[Link]:
        links, self._links = self._links, {}
        return links.values()


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
    """The server of each slot, by an answer to `CLUSTER SLOTS`.

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
