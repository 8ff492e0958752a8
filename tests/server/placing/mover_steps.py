"""What the mover can do next in the model, which may crash at any moment."""

from collections.abc import Iterator

from dibs.model import Inspect, Release, Status
from dibs.server.placing.progress import is_waited_for, standing
from tests.server.placing.books import applied
from tests.server.placing.states import GUARDS, STAMPS, State, World, tupled


def mover_steps(world: World, s: State) -> Iterator[tuple[str, State]]:
    home = s.home
    if s.mover and world.crashes:
        yield "the mover crashes", s._replace(mover=())
    if s.list != "known to all":
        yield _listed(world, s)
        return
    if home.phase == "settled":
        if s.moves:
            to = "B" if home.place == "A" else "A"
            begun = home.begun(to, 0.0)
            yield "the move begins", s._replace(home=begun, moves=s.moves - 1, mover=())
        return
    if not s.mover:
        yield "the mover has waited", _waited(world, s)
    elif home.to:
        yield from _look(world, s)
    else:
        yield from _clear(world, s)


def _listed(world: World, s: State) -> tuple[str, State]:
    """Nothing moves until all have heard that there are several placements, or tell no grant."""
    servers = s.servers
    if "lone" in world.waits:
        servers = tuple(each._replace(stale=each.stale or each.lone) for each in servers)
    return "all have heard of it", s._replace(list="known to all", servers=servers)


def _waited(world: World, s: State) -> State:
    servers = s.servers
    if s.home.phase in world.waits:
        servers = tuple(
            each if each.lone or each.view == s.home else each._replace(stale=True)
            for each in servers
        )
    return s._replace(servers=servers, mover=("waited",))


def _look(world: World, s: State) -> Iterator[tuple[str, State]]:
    books = dict(s.books)
    if s.mover[0] == "waited":
        _, (status,) = applied(books[s.home.place], (Inspect(world.key),), STAMPS[s.home.place])
        assert isinstance(status, Status)
        found = standing([status], s.home.epoch, GUARDS)
        if found.is_over or not world.looks:
            yield "the mover finds nothing", s._replace(mover=("empty", found.last_token))
    elif s.home.sealed or not world.seals:
        yield "it has arrived", s._replace(home=s.home.arrived(s.mover[1], 0.0), mover=())
    else:
        yield "it is sealed", s._replace(home=s.home.seal(0.0), mover=())


def _clear(world: World, s: State) -> Iterator[tuple[str, State]]:
    place, key = s.home.clearing, world.key
    books = dict(s.books)
    if s.mover[0] == "waited":
        _, (status,) = applied(books[place], (Inspect(key),), STAMPS[place])
        assert isinstance(status, Status)
        if world.keeps_guards and is_waited_for(status, s.home.epoch, GUARDS):
            return
        after = s._replace(mover=("looked",))
        if sum(world.renews) and not world.roams:  # what comes meanwhile it has not seen
            yield "the mover finds guards to be taken away", after
        else:
            yield from _clear(world, after)
    elif s.mover[0] == "looked":
        ids = [GUARDS.id_of(key, s.home.epoch, part) for part in ("guard", "wall")]
        books[place], _ = applied(
            books[place], tuple(Release(key, each) for each in ids), STAMPS[place]
        )
        yield "guards are taken away", s._replace(books=tupled(books), mover=("released",))
    else:
        yield "the old place is clear", s._replace(home=s.home.cleared(0.0), mover=())
