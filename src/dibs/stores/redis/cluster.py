"""A Cluster: a batch is grouped by slot, and each node gets its groups in one go."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command
from dibs.stores.redis import greeting, scanning
from dibs.stores.redis.ledger import Outcome, Terms, is_unprepared, prepare, store_key
from dibs.stores.redis.link import Dial, HiredisError, Link, ReplyError, pack
from dibs.stores.redis.parts import Part, split, together
from dibs.stores.redis.server import Server
from dibs.stores.redis.settings import Endpoint, Settings
from dibs.stores.redis.slots import SlotMap, read_redirection, slot_of
from dibs.stores.redis.trouble import broken, code_of, explain

ATTEMPTS = 5
"""So often a part is sent on, at most."""

_REDIRECTIONS = {"MOVED", "ASK"}
_AWAY = {"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"}


class Cluster:
    """All batches over one connection for each node, made when it is first needed."""

    def __init__(self, settings: Settings, dial: Dial, terms: Terms) -> None:
        self._settings = settings
        self._dial = dial
        self._terms = terms
        self._map = SlotMap()
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
        for endpoint in [*self._map.nodes(), *self._settings.endpoints]:
            try:
                return await greeting.connect(self._settings, self._dial, endpoint)
            except BackendUnavailable as error:
                errors.append(error)
        raise BackendUnavailable(
            "no node of the Cluster can be reached: " + "; ".join(dict.fromkeys(map(str, errors)))
        )

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
        self._map.read(answer, link.endpoint)
        self._outdated = False
        return True

    async def _link(self, endpoint: Endpoint) -> Link:
        link = self._links.get(endpoint)
        if link is None or not link.usable:
            link = await greeting.connect(self._settings, self._dial, endpoint)
            self._links[endpoint] = link
        return link

    # -- batches ------------------------------------------------------------------------------------

    async def apply(self, commands: Sequence[Command]) -> Outcome:
        """Apply a batch: one call for each slot, and one round trip for each node."""
        parts = split(commands, lambda key: slot_of(store_key(key)), self._terms)
        again = parts
        for _ in range(ATTEMPTS):
            if self._outdated:
                await self._learn()
            await self._send(again)
            again = [part for part in again if not self._settled(part)]
            if not again:
                break
        return together(parts, len(commands), self._terms)

    async def _send(self, parts: Sequence[Part]) -> None:
        """Send each part to its node, then wait for all answers."""
        routes: dict[Endpoint | None, list[Part]] = {}
        for part in parts:
            part.error = part.answer = None
            routes.setdefault(part.asking or self._map.owner(part.slot), []).append(part)
        under_way: list[tuple[Link, list[Part], Awaitable[list[Any]]]] = []
        try:
            for endpoint, its_parts in routes.items():
                await self._ask(endpoint, its_parts, under_way)
            for link, its_parts, answers in under_way:
                await self._hear(link, its_parts, answers)
        except BaseException:
            for link, *_ in under_way:
                link.close()
            raise

    async def _ask(
        self,
        endpoint: Endpoint | None,
        parts: list[Part],
        under_way: list[tuple[Link, list[Part], Awaitable[list[Any]]]],
    ) -> None:
        if endpoint is None:
            self._outdated = True
            return _fail(parts, BackendUnavailable("nobody in the Cluster serves this slot"))
        try:
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
        try:
            found = iter(await answers)
        except (OSError, HiredisError) as error:
            return self._lost(link, parts, error)
        for part in parts:
            if part.asking is not None:
                next(found)
            part.answer = next(found)
            if isinstance(part.answer, ReplyError):
                self._take_refusal(part, part.answer, link)
        unprepared = [part for part in parts if is_unprepared(part.answer)]
        if unprepared:
            try:
                refusal = await prepare(link, unprepared[0].answer)
            except (OSError, HiredisError) as error:
                return self._lost(link, unprepared, error)
            if refusal is not None:
                for part in unprepared:
                    part.answer = refusal
                    part.fail(explain(refusal, link.endpoint))

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
                self._map.moved(slot, there)
                self._outdated = True
        elif code in _AWAY:
            self._outdated = True
            link.close()

    @staticmethod
    def _settled(part: Part) -> bool:
        """It has an answer that is no redirection."""
        if not isinstance(part.answer, ReplyError):
            return True
        return not (is_unprepared(part.answer) or code_of(part.answer) in _REDIRECTIONS)

    # -- the rest -----------------------------------------------------------------------------------

    async def names(self) -> set[bytes]:
        """The names of all keys of ours, on all nodes."""
        await self._learn()
        found: set[bytes] = set()
        for endpoint in self._map.nodes():
            link = await greeting.connect(self._settings, self._dial, endpoint)
            try:
                found |= await scanning.names_on(link)
            finally:
                link.close()
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


def router(settings: Settings, dial: Dial, terms: Terms) -> Server | Cluster:
    """What brings batches to where they belong, and back."""
    kind = Cluster if settings.topology == "cluster" else Server
    return kind(settings, dial, terms)
