"""A small world of stores, servers, clients and a mover, and every order in which their steps can go.

The stores apply the real ledger, the servers run the real plans (`leasehold.server.placing.plans`) and tell
by the real rule of freshness, the mover takes the real steps. What is abstracted is time: a hold that nobody
believes in may lapse at any moment, one that somebody believes in does not (that is what ttl and margin are
for), and when the mover has waited, every server that has not read since is stale (that is what
`settled_after` is for). Commands may be late for ever: whoever gives one up leaves its copy on its way.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from leasehold.core import ledger
from leasehold.core.book import Hold, MemoryBook, Place, Tomb
from leasehold.model import Acquire, Command, Gone, Granted, Inspect, Release, Reply, Status
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.home import Home
from leasehold.server.placing.plans import Plan, To, plan_for
from leasehold.server.placing.progress import standing
from leasehold.server.placing.table import may_tell

KEY = b"lock:d/k"
GUARDS = Guards(b"secret")
STAMPS = {"A": 1000, "B": 500}
"""The clock of B is far behind that of A, so tokens rise by floors or not at all."""

MOST = 900_000

_KINDS: dict[str, type] = {"Hold": Hold, "Place": Place, "Tomb": Tomb}


class Frozen(NamedTuple):
    """A book of the ledger's, as a value."""

    last: int = 0
    capacity: int = 0
    arrivals: int = 0
    entries: tuple[Any, ...] = ()


def frozen(book: MemoryBook) -> Frozen:
    entries = []
    for entry in book.entries():
        fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
        fields["beat"] = 0
        entries.append((type(entry).__name__, tuple(fields.items())))
    # only the order of arrivals matters
    return Frozen(book.last, book.capacity, book.arrivals, tuple(sorted(entries, key=str)))


def thawed(value: Frozen) -> MemoryBook:
    book = MemoryBook(value.last)
    book.capacity, book.arrivals = value.capacity, value.arrivals
    for kind, fields in value.entries:
        book.put(_KINDS[kind](**dict(fields)))
    return book


@cache
def applied(
    value: Frozen, commands: tuple[Command, ...], stamp: int
) -> tuple[Frozen, tuple[Reply, ...]]:
    book = thawed(value)
    replies = tuple(ledger.apply(book, command, 0.0, stamp)[0] for command in commands)
    return frozen(book), replies


@cache
def lapsed(value: Frozen, entry_id: str, stamp: int) -> Frozen:
    book = thawed(value)
    entry = book.get(entry_id)
    assert entry is not None
    book.remove(entry)
    ledger.apply(book, Inspect(KEY), 0.0, stamp)
    return frozen(book)


def ids_in(value: Frozen) -> Iterator[tuple[str, str]]:
    for kind, fields in value.entries:
        yield dict(fields)["id"], kind


class Op(NamedTuple):
    """A server's work at one command of a client's."""

    client: int
    server: int
    view: Home
    command: Acquire
    told: tuple[tuple[Reply, ...], ...] = ()
    back: int | None = None
    """The token of a grant on its way to the server; None: a command is on its way to a store."""
    given_up: bool = False


class Client(NamedTuple):
    sessions: int
    tries: int
    """How often it asks before it leaves."""
    token: int = 0
    """Of the lease it believes in; 0 for none."""


class Server(NamedTuple):
    view: Home
    stale: bool = False


class State(NamedTuple):
    home: Home
    moves: int
    mover: tuple[Any, ...]
    books: tuple[tuple[str, Frozen], ...]
    servers: tuple[Server, ...]
    clients: tuple[Client, ...]
    ops: tuple[Op, ...] = ()
    lapses: int = 0
    """So many more may lapse."""
    most: int = 0
    """The greatest token that was told."""


@dataclass(frozen=True)
class World:
    """How large it is, and what is wrong with it."""

    servers: int = 2
    sessions: tuple[int, ...] = (1, 1)
    queues: tuple[bool, ...] = (True, False)
    capacities: tuple[int, ...] = (1, 1)
    """What each client declares; of a semaphore's the greatest counts, as for the checker of histories."""
    kind: bytes = b"lock"
    moves: int = 1
    tries: tuple[int, ...] = (2, 1)
    lapses: int = 99
    """So many holds and places lapse that nobody believes in."""
    copies: int = 1
    """So many commands that were given up may be on their way."""
    plan: Callable[[Home, Acquire, Guards], Plan] = plan_for
    fresh: bool = True
    waits: tuple[str, ...] = ("sealed", "clearing")
    looks: bool = True
    seals: bool = True
    guards_stand: bool = True

    @property
    def key(self) -> bytes:
        return self.kind + b":d/k"

    def start(self) -> State:
        home = Home("A")
        return State(
            home,
            self.moves,
            (),
            (("A", Frozen()), ("B", Frozen())),
            (Server(home),) * self.servers,
            tuple(
                Client(each, tries) for each, tries in zip(self.sessions, self.tries, strict=True)
            ),
            lapses=self.lapses,
        )


@dataclass
class Found:
    """What the search found."""

    states: int = 0
    flaw: str | None = None
    trace: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """What has happened at all."""


class Flaw(Exception):
    pass


class Steps:
    """All that can happen next."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.drive = lru_cache(maxsize=None)(self._drive)

    def _drive(
        self, view: Home, command: Acquire, told: tuple[tuple[Reply, ...], ...]
    ) -> To | Reply:
        if not view.to:
            return told[0][0] if told else To(view.place, (self._floored(view, command),))
        plan = self.world.plan(view, command, GUARDS)
        asked = next(plan)
        try:
            for replies in told:
                asked = plan.send((replies,))
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        (to,) = asked
        return to

    def _floored(self, view: Home, command: Acquire) -> Acquire:
        return replace(command, floor=max(command.floor, view.floor))

    def next(self, s: State) -> Iterator[tuple[str, State]]:
        yield from self._mover(s)
        for number, server in enumerate(s.servers):
            if server != (s.home, False):
                servers = _with(s.servers, number, Server(s.home))
                yield f"server {number} reads", s._replace(servers=servers)
        for number, client in enumerate(s.clients):
            yield from self._client(s, number, client)
        for op in s.ops:
            yield from self._op(s, op)
        yield from self._lapses(s)

    # -- clients and servers ------------------------------------------------------------------------

    def _id(self, number: int, client: Client) -> str:
        return f"{'XY'[number]}{client.sessions}"

    def _client(self, s: State, number: int, client: Client) -> Iterator[tuple[str, State]]:
        if client.token:
            ended = Client(client.sessions - 1, self.world.tries[number])
            yield (
                f"client {number} ends",
                s._replace(clients=_with(s.clients, number, ended)),
            )
            return
        if not client.sessions:
            return
        waiting = [op for op in s.ops if op.client == number and not op.given_up]
        if not waiting and not client.tries:
            left = Client(client.sessions - 1, self.world.tries[number])
            yield f"client {number} leaves", s._replace(clients=_with(s.clients, number, left))
        elif not waiting:
            world = self.world
            clients = _with(s.clients, number, client._replace(tries=client.tries - 1))
            for at, server in enumerate(s.servers):
                if server.stale:
                    continue
                command = Acquire(
                    world.key,
                    self._id(number, client),
                    "me",
                    10.0,
                    1,
                    world.capacities[number],
                    queue=world.queues[number],
                )
                op = Op(number, at, server.view, command)
                yield (
                    f"client {number} asks server {at} ({server.view.phase})",
                    s._replace(clients=clients, ops=_sorted((*s.ops, op))),
                )
        elif waiting[0].back is None and sum(op.given_up for op in s.ops) < self.world.copies:
            (op,) = waiting
            yield (
                f"client {number} gives up its request to server {op.server}",
                s._replace(ops=_sorted((*_without(s.ops, op), op._replace(given_up=True)))),
            )

    def _op(self, s: State, op: Op) -> Iterator[tuple[str, State]]:
        rest = _without(s.ops, op)
        if op.back is None:
            asked = self.drive(op.view, op.command, op.told)
            assert isinstance(asked, To)
            books = dict(s.books)
            books[asked.place], replies = applied(
                books[asked.place], asked.commands, STAMPS[asked.place]
            )
            names = "+".join(type(each).__name__ for each in asked.commands)
            answers = "+".join(type(each).__name__ for each in replies)
            label = f"{asked.place} applies {names} of {op.command.id}: {answers}"
            told = (*op.told, replies)
            reply = self.drive(op.view, op.command, told)
            s = s._replace(books=_tupled(books), ops=rest)
            if isinstance(reply, To):
                yield label, s._replace(ops=_sorted((*rest, op._replace(told=told))))
            elif op.given_up:
                yield label, s  # nobody is to be told
            elif isinstance(reply, Granted):
                back = op._replace(told=(), back=reply.token)
                yield label, s._replace(ops=_sorted((*rest, back)))
            else:
                yield f"{label}, and {type(reply).__name__} is told", self._refused(s, op, reply)
            return
        yield from self._granted(s._replace(ops=rest), op, op.back)

    def _refused(self, s: State, op: Op, reply: Reply) -> State:
        if not isinstance(reply, Gone):
            return s
        ended = Client(s.clients[op.client].sessions - 1, self.world.tries[op.client])
        return s._replace(clients=_with(s.clients, op.client, ended))

    def _granted(self, s: State, op: Op, token: int) -> Iterator[tuple[str, State]]:
        """A grant has come back to the server: it is told, or it is not."""
        server, client = s.servers[op.server], s.clients[op.client]
        age = 2.0 if server.stale else 0.0
        reply = Granted(token, (), 10.0)
        if self.world.fresh and not may_tell(reply, op.view, server.view, age, 1.0):
            yield f"server {op.server} tells nothing", s
            return
        label = f"server {op.server} tells client {op.client} of its grant"
        clients = _with(s.clients, op.client, client._replace(token=token))
        told = s._replace(clients=clients, most=max(s.most, token))
        if sum(1 for each in clients if each.token) > max(self.world.capacities):
            raise Flaw("two hold it", label)
        if token <= s.most:
            raise Flaw("tokens fall", label)
        yield label, told

    def _lapses(self, s: State) -> Iterator[tuple[str, State]]:
        believed = {
            self._id(number, client) for number, client in enumerate(s.clients) if client.token
        }
        # an answer that comes too late is as good as none, and that is explored as such
        believed |= {op.command.id for op in s.ops if op.back is not None}
        ours = {
            GUARDS.id_of(self.world.key, epoch, part): epoch
            for epoch in range(1, self.world.moves + 1)
            for part in ("guard", "wall")
        }
        for place, book in s.books:
            for entry_id, kind in ids_in(book):
                if entry_id in believed:
                    continue
                epoch = ours.get(entry_id)
                guarding = s.home.phase != "settled" and epoch == s.home.epoch
                if guarding and self.world.guards_stand:
                    continue
                books = {**dict(s.books), place: lapsed(book, entry_id, STAMPS[place])}
                if epoch is None and not s.lapses:
                    continue
                left = s.lapses - (epoch is None and s.lapses < 99)
                label = f"{kind} of {'a guard' if epoch else entry_id} lapses at {place}"
                yield label, s._replace(books=_tupled(books), lapses=left)

    # -- the mover ----------------------------------------------------------------------------------

    def _mover(self, s: State) -> Iterator[tuple[str, State]]:
        home = s.home
        if s.mover:
            yield "the mover crashes", s._replace(mover=())
        if home.phase == "settled":
            if s.moves:
                to = "B" if home.place == "A" else "A"
                begun = home.begun(to, 0.0)
                yield "the move begins", s._replace(home=begun, moves=s.moves - 1, mover=())
            return
        if not s.mover:
            yield "the mover has waited", self._waited(s)
        elif home.to:
            yield from self._look(s)
        else:
            yield from self._clear(s)

    def _waited(self, s: State) -> State:
        servers = s.servers
        if s.home.phase in self.world.waits:
            servers = tuple(
                each if each.view == s.home else each._replace(stale=True) for each in servers
            )
        return s._replace(servers=servers, mover=("waited",))

    def _look(self, s: State) -> Iterator[tuple[str, State]]:
        books = dict(s.books)
        if s.mover[0] == "waited":
            _, (status,) = applied(
                books[s.home.place], (Inspect(self.world.key),), STAMPS[s.home.place]
            )
            assert isinstance(status, Status)
            found = standing([status], s.home.epoch, GUARDS)
            if found.is_over or not self.world.looks:
                yield "the mover finds nothing", s._replace(mover=("empty", found.last_token))
        elif s.home.sealed or not self.world.seals:
            yield "it has arrived", s._replace(home=s.home.arrived(s.mover[1], 0.0), mover=())
        else:
            yield "it is sealed", s._replace(home=s.home.seal(0.0), mover=())

    def _clear(self, s: State) -> Iterator[tuple[str, State]]:
        if s.mover[0] == "waited":
            place, key = s.home.clearing, self.world.key
            ids = [GUARDS.id_of(key, s.home.epoch, part) for part in ("guard", "wall")]
            books = dict(s.books)
            books[place], _ = applied(
                books[place], tuple(Release(key, each) for each in ids), STAMPS[place]
            )
            yield "guards are taken away", s._replace(books=_tupled(books), mover=("released",))
        else:
            yield "the old place is clear", s._replace(home=s.home.cleared(0.0), mover=())


def is_good(s: State) -> bool:
    """All is done, and everybody had their turn."""
    return s.home.phase == "settled" and not s.moves and not any(c.sessions for c in s.clients)


def explore(world: World, *, liveness: bool = True) -> Found:
    """Breadth first, until there is nothing new or something is wrong."""
    steps, start = Steps(world), world.start()
    numbers, cames = {start: 0}, [(0, "")]
    todo, found = deque([start]), Found()
    before: list[list[int]] = [[]]
    good: list[int] = []
    while todo:
        state = todo.popleft()
        here = numbers[state]
        if is_good(state):
            good.append(here)
        try:
            for label, after in steps.next(state):
                found.seen.add(label)
                after = _canonical(after)
                number = numbers.get(after)
                if number is None:
                    number = numbers[after] = len(cames)
                    cames.append((here, label))
                    before.append([])
                    todo.append(after)
                if liveness:
                    before[number].append(here)
        except Flaw as flaw:
            found.flaw, found.trace = flaw.args[0], [*_trace(cames, here), flaw.args[1]]
            break
        assert len(cames) < MOST, "this is no small world any more"
    found.states = len(cames)
    if found.flaw is None and liveness:
        stuck = _stuck(before, good)
        if stuck is not None:
            found.flaw, found.trace = "stuck for ever", _trace(cames, stuck)
    return found


def sweep(world: World) -> int:
    """How many states there are, of a world too large to remember the way to each. Raises `Flaw`."""
    steps, start = Steps(world), world.start()
    seen, todo = {hash(start)}, [start]
    while todo:
        for _, after in steps.next(todo.pop()):
            after = _canonical(after)
            if hash(after) not in seen:
                seen.add(hash(after))
                todo.append(after)
    return len(seen)


def _stuck(before: list[list[int]], good: list[int]) -> int | None:
    """A state from which nothing good can be reached."""
    reached, todo = set(good), list(good)
    while todo:
        for each in before[todo.pop()]:
            if each not in reached:
                reached.add(each)
                todo.append(each)
    return next((n for n in range(len(before)) if n not in reached), None)


def _trace(cames: list[tuple[int, str]], at: int) -> list[str]:
    lines = []
    while at:
        at, label = cames[at]
        lines.append(label)
    return lines[::-1]


def _with(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _without(ops: tuple[Op, ...], op: Op) -> tuple[Op, ...]:
    at = ops.index(op)
    return (*ops[:at], *ops[at + 1 :])


def _sorted(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(sorted(ops, key=str)) if len(ops) > 1 else ops


def _canonical(s: State) -> State:
    """Servers are alike: which is which is no difference."""
    if len(s.servers) != 2 or str(s.servers[0]) <= str(s.servers[1]):
        return s
    ops = tuple(op._replace(server=1 - op.server) for op in s.ops)
    return s._replace(servers=s.servers[::-1], ops=_sorted(ops))


def _tupled(books: dict[str, Frozen]) -> tuple[tuple[str, Frozen], ...]:
    return tuple(sorted(books.items()))


if __name__ == "__main__":
    for large in (World(lapses=1), World(), World(moves=2, copies=0, tries=(1, 1), lapses=2)):
        print(large, sweep(large), "states", flush=True)
