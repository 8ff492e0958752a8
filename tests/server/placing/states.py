"""What there is in the model: a world's size and its faults, and one moment of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from leasehold.model import Acquire, Reply
from leasehold.server.placing.guards import Guards
from leasehold.server.placing.home import Home
from leasehold.server.placing.plans import Plan, plan_for
from tests.server.placing.books import Frozen

GUARDS = Guards(b"secret")
STAMPS = {"A": 1000, "B": 500}
"""The clock of B is far behind that of A, so tokens rise by floors or not at all."""


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
    """It has read nothing for so long that it tells no grant."""
    lone: bool = False
    """It believes that there is one store only, for longer than others believe what they have read."""


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
            (Server(home, lone=self.lone),) * self.servers,
            tuple(
                Client(each, tries) for each, tries in zip(self.sessions, self.tries, strict=True)
            ),
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
    return s._replace(servers=s.servers[::-1], ops=in_order(ops))


def tupled(books: dict[str, Frozen]) -> tuple[tuple[str, Frozen], ...]:
    return tuple(sorted(books.items()))
