"""Renewals in the model: of an id whose client was never told that it holds.

Whoever renews a lease that he was told of gets nothing by it. But a grant may have been withheld, or never
have come back, and then a renewal is the first that its caller hears of it.
"""

from collections.abc import Iterator

from dibs.model import Acquire, Granted, Renew, Renewed
from tests.server.placing.books import ids_in, silenced
from tests.server.placing.states import Op, State, World, changed, in_order, tupled


def renewals(world: World, s: State, number: int, lease_id: str) -> Iterator[tuple[str, State]]:
    """A client asks for one, whatever it was told."""
    client = s.clients[number]
    if not client.renews or client.tries == world.tries[number]:
        return
    clients = changed(s.clients, number, client._replace(renews=client.renews - 1))
    for at, server in enumerate(s.servers):
        if client.in_line if world.roams else client.at == at:
            command = Renew(world.key, lease_id, 10.0)
            is_untold = world.minds and lease_id in server.untold
            op = Op(number, at, server.view, command, untold=is_untold)
            yield (
                f"client {number} renews at server {at} ({server.view.phase})",
                s._replace(clients=clients, ops=in_order((*s.ops, op))),
            )


def is_renewed(op: Op) -> bool:
    """Whether a place has said so, while the other is still to be asked."""
    told = (reply for replies in op.told for reply in replies)
    return isinstance(op.command, Renew) and any(
        isinstance(reply, Granted | Renewed) for reply in told
    )


def unheard(world: World, s: State, op: Op) -> State:
    """The server of an Acquire does not know what becomes of it."""
    return remembered(world, s, op, is_told=False) if isinstance(op.command, Acquire) else s


def remembered(world: World, s: State, op: Op, *, is_told: bool) -> State:
    """Whether it was told that an id holds, as its server remembers it."""
    if not world.remembers or not sum(world.renews):
        return s
    server = s.servers[op.server]
    others = {each for each in server.untold if each != op.command.id}
    untold = tuple(sorted(others if is_told else {*others, op.command.id}))
    return s._replace(servers=changed(s.servers, op.server, server._replace(untold=untold)))


def silences(world: World, s: State) -> Iterator[tuple[str, State]]:
    """Who waits is not heard for so long that others may pass him."""
    if not world.falls_silent:
        return
    for place, book in s.books:
        for entry_id, kind in ids_in(book):
            if kind == "Place" and (silent := silenced(book, entry_id)) != book:
                books = {**dict(s.books), place: silent}
                yield f"{entry_id} falls silent at {place}", s._replace(books=tupled(books))
