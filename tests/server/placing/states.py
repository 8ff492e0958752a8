"""What there is in the model: a world's size and its faults, and one moment of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from dibs.model import Acquire, Renew, Reply
from dibs.server.placing.guards import Guards
from dibs.server.placing.home import Home
from dibs.server.placing.plans import Plan, plan_for
from tests.server.placing.books import Frozen

RENEWED = -1

GUARDS = Guards(b"secret")
STAMPS = {"A": 1000, "B": 500}
"""The clock of B is far behind that of A, so tokens rise by floors or not at all."""


class Op(NamedTuple):
    """A server's work at one command of a client's."""

    client: int
    server: int
    view: Home
    command: Acquire | Renew
    told: tuple[tuple[Reply, ...], ...] = ()
    back: int | None = None
    """The token of a grant on its way to the server, `RENEWED` where it is none; None: a command is on its
    way to a store."""
    given_up: bool = False
    untold: bool = False
    """When a renewal was sent its server had not told that its id holds."""


class Client(NamedTuple):
    sessions: int
    tries: int
    """How often it asks before it leaves."""
    token: int = 0
    """Of the lease it believes in; 0 for none, `RENEWED` where it was not told."""
    renews: int = 0
    """How often it asks whether its id holds, which it was not told."""
    at: int = -1
    """The server that it has asked, if it stays there."""
    in_line: bool = False
    """It was told that it has a place in line."""


class Server(NamedTuple):
    view: Home
    stale: bool = False
    """It has read nothing for so long that it tells no grant."""
    lone: bool = False
    """It believes that there is one store only, for longer than others believe what they have read."""
    untold: tuple[str, ...] = ()
    """Ids under which something may be held that it has told nobody of."""


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
    list: Literal["several", "known to all"] = "known to all"
    """Of the list of placements: whether some server may not have heard that there are several."""


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
    waits: tuple[str, ...] = ("sealed", "clearing", "lone")
    looks: bool = True
    seals: bool = True
    guards_stand: bool = True
    lone: bool = False
    """There was one store only until now, and no server has heard of the second."""
    asks: bool = True
    """Whoever believes in a lease may ask any server for it at any moment, and has to find it."""
    is_sure: bool = True
    """Servers read where directories live before they say that there is nothing."""
    renews: tuple[int, ...] = (0, 0)
    """So often each client asks whether its id holds without having been told: also who cannot read the
    records any more answers that."""
    roams: bool = False
    """It asks any server so, once it was told of a place in line; else the one that it has always asked."""
    is_sealed: bool = False
    """A move is under way from the start, and sealed a moment ago: no server has heard of it."""
    crashes: bool = True
    """The mover may, at any moment."""
    falls_silent: bool = False
    """Who waits in line may be not heard for so long that others pass him."""
    remembers: bool = True
    """A server holds what it says of an id to the rule for grants while it has withheld one."""
    minds: bool = True
    """So do the plans of renewals amid a move."""
    keeps_guards: bool = True
    """None is taken away that somebody waits behind."""

    @property
    def key(self) -> bytes:
        return self.kind + b":d/k"

    def client(self, number: int, sessions: int) -> Client:
        """One with so many leases to ask for."""
        return Client(sessions, self.tries[number], renews=self.renews[number])

    def start(self) -> State:
        home = Home("A")
        return State(
            home.begun("B", 0.0).seal(0.0) if self.is_sealed else home,
            self.moves - self.is_sealed,
            (),
            (("A", Frozen()), ("B", Frozen())),
            (Server(home, lone=self.lone),) * self.servers,
            tuple(self.client(number, sessions) for number, sessions in enumerate(self.sessions)),
            lapses=self.lapses,
            list="several" if self.lone else "known to all",
        )


def changed(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def without(ops: tuple[Op, ...], op: Op) -> tuple[Op, ...]:
    at = ops.index(op)
    return (*ops[:at], *ops[at + 1 :])


@cache
def _text(value: Op | Server) -> str:
    return str(value)


def in_order(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(sorted(ops, key=_text)) if len(ops) > 1 else ops


def canonical(s: State) -> State:
    """Servers are alike: which is which is no difference."""
    if len(s.servers) != 2 or _text(s.servers[0]) <= _text(s.servers[1]):
        return s
    ops = tuple(op._replace(server=1 - op.server) for op in s.ops)
    clients = tuple(each if each.at < 0 else each._replace(at=1 - each.at) for each in s.clients)
    return s._replace(servers=s.servers[::-1], ops=in_order(ops), clients=clients)


def tupled(books: dict[str, Frozen]) -> tuple[tuple[str, Frozen], ...]:
    return tuple(sorted(books.items()))
