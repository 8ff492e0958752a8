"""All that can happen next in the model."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from dibs.model import Acquire, Gone, Granted, Queued, Renew, Renewed, Reply
from dibs.server.placing.home import Home
from dibs.server.placing.plans import LATE, To, plan_for
from dibs.server.placing.table import may_tell
from tests.server.placing.books import applied, ids_in, lapsed
from tests.server.placing.denials import Denials
from tests.server.placing.mover_steps import mover_steps
from tests.server.placing.renewals import is_renewed, remembered, renewals, silences, unheard
from tests.server.placing.states import (
    GUARDS,
    RENEWED,
    STAMPS,
    Client,
    Op,
    Server,
    State,
    World,
    changed,
    in_order,
    tupled,
    without,
)


class Flaw(Exception):
    """What must not be."""


class Steps:
    """All that can happen next."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ours = {
            GUARDS.id_of(world.key, epoch, part): epoch
            for epoch in range(1, world.moves + 1)
            for part in ("guard", "wall")
        }
        self.drive = lru_cache(maxsize=None)(self._drive)
        self._denials = Denials(world)

    def _drive(
        self,
        view: Home,
        command: Acquire | Renew,
        told: tuple[tuple[Reply, ...], ...],
        untold: bool,
    ) -> To | Reply:
        """What is asked next, of one place at a time; or what comes of it all."""
        if not view.to:
            return told[0][0] if told else To(view.place, (self._floored(view, command),))
        if isinstance(command, Acquire):
            plan = self.world.plan(view, command, GUARDS)
        else:
            plan = plan_for(view, command, GUARDS, is_untold=untold)
        asked = next(plan)
        try:
            while len(told) >= len(asked):
                now, told = told[: len(asked)], told[len(asked) :]
                asked = plan.send(now)
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        return asked[len(told)]

    def _floored(self, view: Home, command: Acquire | Renew) -> Acquire | Renew:
        if isinstance(command, Renew):
            return command
        return replace(command, floor=max(command.floor, view.floor))

    def next(self, s: State) -> Iterator[tuple[str, State]]:
        yield from mover_steps(self.world, s)
        for number, server in enumerate(s.servers):
            if server[:3] != (s.home, False, False):
                servers = changed(s.servers, number, Server(s.home, untold=server.untold))
                yield f"server {number} reads", s._replace(servers=servers)
        for number, client in enumerate(s.clients):
            yield from self._client(s, number, client)
        for op in s.ops:
            yield from self._op(s, op)
        yield from self._lapses(s)
        yield from silences(self.world, s)

    # -- clients and servers ------------------------------------------------------------------------

    def _id(self, number: int, client: Client) -> str:
        return f"{'XY'[number]}{client.sessions}"

    def _client(self, s: State, number: int, client: Client) -> Iterator[tuple[str, State]]:
        if client.token:
            if self.world.asks:
                self._look_for_its_lease(s, number, client)
            ended = self.world.client(number, client.sessions - 1)
            yield (
                f"client {number} ends",
                s._replace(clients=changed(s.clients, number, ended)),
            )
            return
        if not client.sessions:
            return
        waiting = [op for op in s.ops if op.client == number and not op.given_up]
        if not waiting and not client.tries:
            left = self.world.client(number, client.sessions - 1)
            yield f"client {number} leaves", s._replace(clients=changed(s.clients, number, left))
        elif not waiting:
            world = self.world
            for at, server in enumerate(s.servers):
                if server.stale or client.at not in (-1, at):
                    continue
                stays = at if world.renews[number] and not world.roams else -1
                asking = client._replace(tries=client.tries - 1, at=stays)
                clients = changed(s.clients, number, asking)
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
                    s._replace(clients=clients, ops=in_order((*s.ops, op))),
                )
        elif waiting[0].back is None and sum(op.given_up for op in s.ops) < self.world.copies:
            (op,) = waiting
            s = unheard(self.world, s, op)
            yield (
                f"client {number} gives up its request to server {op.server}",
                s._replace(ops=in_order((*without(s.ops, op), op._replace(given_up=True)))),
            )
        if not waiting:
            yield from renewals(self.world, s, number, self._id(number, client))

    def _look_for_its_lease(self, s: State, number: int, client: Client) -> None:
        for server in s.servers:
            units = self.world.capacities[number]
            denied = self._denials.denied(s.books, s.home, server, self._id(number, client), units)
            if denied:
                raise Flaw("a lease is denied", f"client {number}: {denied} by {server}")

    def _op(self, s: State, op: Op) -> Iterator[tuple[str, State]]:
        rest = without(s.ops, op)
        if op.back is None:
            asked = self.drive(op.view, op.command, op.told, op.untold)
            assert isinstance(asked, To)
            books = dict(s.books)
            books[asked.place], replies = applied(
                books[asked.place], asked.commands, STAMPS[asked.place]
            )
            names = "+".join(type(each).__name__ for each in asked.commands)
            answers = "+".join(type(each).__name__ for each in replies)
            label = f"{asked.place} applies {names} of {op.command.id}: {answers}"
            told = (*op.told, replies)
            reply = self.drive(op.view, op.command, told, op.untold)
            s = s._replace(books=tupled(books), ops=rest)
            if isinstance(reply, To):
                yield label, s._replace(ops=in_order((*rest, op._replace(told=told))))
            elif op.given_up:
                yield label, s  # nobody is to be told
            elif isinstance(reply, Granted | Renewed):
                token = reply.token if isinstance(reply, Granted) else RENEWED
                back = op._replace(told=(), back=token)
                yield label, s._replace(ops=in_order((*rest, back)))
            else:
                yield f"{label}, and {type(reply).__name__} is told", self._refused(s, op, reply)
            return
        yield from self._granted(s._replace(ops=rest), op, op.back)

    def _refused(self, s: State, op: Op, reply: Reply) -> State:
        client = s.clients[op.client]
        if reply is LATE:
            s = remembered(self.world, s, op, is_told=False)
        if isinstance(reply, Gone):
            client = self.world.client(op.client, client.sessions - 1)
        elif isinstance(reply, Queued) and self.world.roams:
            client = client._replace(in_line=True)
        return s._replace(clients=changed(s.clients, op.client, client))

    def _granted(self, s: State, op: Op, token: int) -> Iterator[tuple[str, State]]:
        """A grant has come back to the server: it is told, or it is not."""
        server, client = s.servers[op.server], s.clients[op.client]
        reply = Renewed(10.0) if token == RENEWED else Granted(token, (), 10.0)
        if self.world.fresh and not may_tell(
            reply,
            op.view,
            server.view,
            is_fresh=not server.stale,
            was_read_since=False,
            is_untold=op.command.id in server.untold,
        ):
            yield f"server {op.server} tells nothing", remembered(self.world, s, op, is_told=False)
            return
        what = "renewal" if token == RENEWED else "grant"
        label = f"server {op.server} tells client {op.client} of its {what}"
        clients = changed(s.clients, op.client, client._replace(token=token))
        told = s._replace(clients=clients, most=max(s.most, token))
        told = remembered(self.world, told, op, is_told=True)
        if sum(1 for each in clients if each.token) > max(self.world.capacities):
            raise Flaw("two hold it", label)
        if token != RENEWED and token <= s.most and max(self.world.capacities) == 1:
            raise Flaw("tokens fall", label)  # of a semaphore's answers may overtake each other
        yield label, told

    def _lapses(self, s: State) -> Iterator[tuple[str, State]]:
        believed = {
            self._id(number, client) for number, client in enumerate(s.clients) if client.token
        }
        # an answer that comes too late is as good as none, and that is explored as such
        believed |= {op.command.id for op in s.ops if op.back is not None or is_renewed(op)}
        for place, book in s.books:
            for entry_id, kind in ids_in(book):
                if entry_id in believed:
                    continue
                epoch = self._ours.get(entry_id)
                guarding = s.home.phase != "settled" and epoch == s.home.epoch
                if guarding and self.world.guards_stand:
                    continue
                books = {**dict(s.books), place: lapsed(book, entry_id, STAMPS[place])}
                if epoch is None and not s.lapses:
                    continue
                left = s.lapses - (epoch is None and s.lapses < 99)
                label = f"{kind} of {'a guard' if epoch else entry_id} lapses at {place}"
                yield label, s._replace(books=tupled(books), lapses=left)
