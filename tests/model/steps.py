"""What can happen next in a small world: every step that time, a client, a message or a fault can take."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model.invariants import flaws_of, written
from tests.model.size import World
from tests.model.store import Outcome, Store
from tests.model.world import (
    LONG_AGO,
    Call,
    Client,
    FrozenBook,
    Message,
    State,
    Trip,
    book_a_tick_later,
    renumbered,
)

TIME = -1
FAULT = -2

type Label = tuple[Any, ...]


class Step(NamedTuple):
    label: Label
    actor: int
    """Which client moves, or whose message; TIME; FAULT."""
    state: State
    flaw: str | None = None


class Steps:
    def __init__(self, world: World) -> None:
        self.world = world
        self.protocol = world.protocol
        self.store = Store(world.clock, world.capacity, world.ttl, world.waiter_ttl)

    def __call__(self, state: State) -> Iterator[Step]:
        for step in self._raw(state):
            yield self._judged(step)

    def _raw(self, state: State) -> Iterator[Step]:
        if state.ghost.top > self.world.grants:
            return
        yield self._tick(state)
        for i in range(len(state.clients)):
            yield from self._acts(state, i)
        for message in dict.fromkeys(state.net):
            yield from self._travels(state, message)
        if state.faults:
            yield self._fault(state)

    def _judged(self, step: Step) -> Step:
        """Let the believers write to the resource, and look for flaws."""
        if step.flaw or not self.world.exclusive:
            return step  # where the data is lost, tokens come of the clock: they keep their values
        ghost, fenced = written(step.state.ghost, step.state.clients)
        state = step.state._replace(ghost=ghost)
        if state.net and state.net[0][0] == "p":
            net = tuple(m for m in state.net if m[0] != "p" or wants(state, m))
            state = state._replace(net=net)
        state = renumbered(state)
        flaw = next(flaws_of(state, self.world.capacity), fenced)
        return Step(step.label, step.actor, state, flaw)

    # -- time -----------------------------------------------------------------------------------------

    def _tick(self, state: State) -> Step:
        slipping = state.phase == 0
        ticks = tuple(1 + slip if slipping else 1 for slip in self.world.slips)
        later = state._replace(
            book=book_a_tick_later(state.book, self.world.clock, ticks),
            clients=tuple(map(a_tick_later, state.clients, ticks)),
            net=tuple(sorted(map(message_a_tick_later, state.net))),
            phase=(state.phase + 1) % self.world.every,
        )
        for i, client in enumerate(later.clients):
            if client.mode == "lost" and state.clients[i].mode != "lost":
                later = self._orphaned(later, i)
        return Step(("tick", *ticks), TIME, later)

    # -- what a client does of its own accord -----------------------------------------------------------

    def _acts(self, state: State, i: int) -> Iterator[Step]:
        client = state.clients[i]
        yield from getattr(self, f"_{client.mode}")(state, i, client)
        if client.call is not None:  # no answer came in time: what was sent may yet arrive
            asked = 2 if client.call[0] == "acquire" else client.asked
            # A retry keeps the send time, until that is so old that no answer would be of use.
            sent = client.sent if client.sent < LONG_AGO else 0
            late = client._replace(asked=asked, sent=sent)
            if self.world.doubts and client.mode in ("asking", "queued"):
                late = self.protocol.doubted(late)
            again = with_client(self._orphaned(state, i), i, late)
            yield from self._sent(again, i, client.call, "sends again")

    def _idle(self, state: State, i: int, client: Client) -> Iterator[Step]:
        if client.born < self.world.ids[i]:
            fresh = Client(born=client.born + 1, mode="asking", units=self.world.units[i])
            yield from self._asks(state, i, fresh)

    def _asking(self, state: State, i: int, client: Client) -> Iterator[Step]:
        yield from self._leaves(state, i, client)

    def _queued(self, state: State, i: int, client: Client) -> Iterator[Step]:
        yield from self._leaves(state, i, client)
        if client.call is None:
            yield from self._speaks(state, i, client)

    def _held(self, state: State, i: int, client: Client) -> Iterator[Step]:
        yield from self._leaves(state, i, client)
        if client.call is not None or client.spent >= self.world.renewals[i]:
            return
        more = client._replace(spent=client.spent + 1)
        if not self.world.resizes:
            yield from self._calls(state, i, more, ("renew", id_of(i, client)))
        elif client.units > 1:
            less = self.protocol.shrunk(more)._replace(seq=client.seq + 1)
            yield from self._calls(state, i, less, ("resize", id_of(i, client), 1, less.seq))
        else:
            up = more._replace(seq=client.seq + 1)
            yield from self._calls(state, i, up, ("resize", id_of(i, client), 2, up.seq))

    def _lost(self, state: State, i: int, client: Client) -> Iterator[Step]:
        yield from self._leaves(state, i, client)
        if client.asked == 1:
            yield Step((i, "forgets"), i, with_client(state, i, Client(born=client.born)))

    def _asks(self, state: State, i: int, client: Client) -> Iterator[Step]:
        world = self.world
        wants = (world.units[i], world.queues[i], world.priorities[i])
        call = ("acquire", id_of(i, client), *wants)
        asked = client._replace(asked=min(client.asked + 1, 2))
        yield from self._calls(state, i, asked, call)

    def _speaks(self, state: State, i: int, client: Client) -> Iterator[Step]:
        if self.world.speaks == "acquire":
            yield from self._asks(state, i, client)
        else:
            yield from self._calls(state, i, client, ("renew", id_of(i, client)))

    def _leaves(self, state: State, i: int, client: Client) -> Iterator[Step]:
        call = ("release", id_of(i, client), self.world.keep, self.protocol.set_tombstone(client))
        gone = with_client(self._orphaned(state, i), i, self.protocol.gone(client))
        if self.world.loud[i]:
            yield Step((i, "leaves", call), i, posted(gone, ("q", i, False, call)))
        else:
            served, _, flaw = self._served(gone, i, call)
            yield Step((i, "leaves", call), i, served, flaw)

    # -- sending ----------------------------------------------------------------------------------------

    def _calls(self, state: State, i: int, client: Client, call: Call) -> Iterator[Step]:
        """A new call; whatever is still under way of the one before is no longer answered."""
        orphaned = self._orphaned(state, i)
        waits = self.world.doubts and client.mode == "queued"
        if waits and self.protocol.was_silent(client, self.world.tombstone):
            client = self.protocol.doubted(client)
        yield from self._sent(
            with_client(orphaned, i, client._replace(call=call, sent=0)), i, call, "sends"
        )

    def _sent(self, state: State, i: int, call: Call, how: str) -> Iterator[Step]:
        if self.world.loud[i]:
            yield Step((i, how, call), i, posted(state, ("q", i, True, call)))
            return
        served, outcome, flaw = self._served(state, i, call)
        label = (i, how, call, outcome.reply)
        for step in self._hears(served, i, outcome.reply, label):
            yield step._replace(flaw=flaw or step.flaw)

    def _orphaned(self, state: State, i: int) -> State:
        """Nothing of the client's call is answered any more, but its requests may arrive yet."""
        net = []
        stale = sum(m[0] == "q" and not m[2] and m[3][0] != "release" for m in state.net)
        for message in state.net:
            kind, whose = message[0], message[1]
            if whose != i or kind == "p" or (kind == "q" and not message[2]):
                net.append(message)
            elif kind == "q" and stale < self.world.stale:
                stale += 1
                net.append(("q", i, False, message[3]))
        return state._replace(net=tuple(sorted(net)))

    # -- messages ---------------------------------------------------------------------------------------

    def _travels(self, state: State, message: Message) -> Iterator[Step]:
        without = taken(state, message)
        whose = message[1]
        if message[0] == "q":
            yield self._arrives(without, message, "arrives")
            # A network may double what is harmless to double; an Acquire only travels twice if its
            # client sends it twice, and then it knows.
            if state.copies and message[3][0] != "acquire":
                copy = ("q", whose, False, message[3])
                fewer = posted(without._replace(copies=state.copies - 1), copy)
                yield self._arrives(fewer, message, "arrives, and will again")
        elif message[0] == "r":
            yield from self._hears(without, whose, message[2], ("heard", message))
        else:
            yield from self._pushed(without, message)

    def _arrives(self, state: State, message: Message, how: str) -> Step:
        _, whose, live, call = message
        served, outcome, flaw = self._served(state, whose, call)
        if live:
            served = posted(served, ("r", whose, outcome.reply))
        return Step((how, message, outcome.reply), whose, served, flaw)

    def _served(self, state: State, i: int, call: Call) -> tuple[State, Outcome, str | None]:
        """The store applies a call; pushes leave, and the ghost takes note."""
        outcome = self.store.apply(state.book, call, i, state.stamp)
        ghost = state.ghost
        flaw = outcome.flaw
        if any(token <= ghost.top for token in outcome.tokens):
            flaw = f"token {min(outcome.tokens)} was granted after {ghost.top}"
        ended = ghost.ended | {call[1]} if call[0] == "release" else ghost.ended
        ghost = ghost._replace(top=max(ghost.top, outcome.book.last), ended=ended)
        served = state._replace(book=outcome.book, ghost=ghost)
        for push in outcome.pushes:
            served = posted(served, push)
        return served, outcome, flaw

    def _pushed(self, state: State, push: Message) -> Iterator[Step]:
        _, i, id_, token, slots, window, ago = push
        client = state.clients[i]
        if id_ != id_of(i, client) or client.mode != "queued":
            return
        if self.world.doubts and client.call is not None:
            return  # it is heard after the answer
        left = self.protocol.left_of_push(window, client.trip, ago)
        label = ("pushed", push)
        if left is not None and left > 0:
            held = client._replace(mode="held", left=left, token=token, slots=slots)
            if self.world.doubts:
                held = held._replace(trip=None)
            believed = (*label, ("believed", left))
            yield Step(believed, i, with_client(state, i, held))
        elif client.call is None:
            for step in self._speaks(state, i, client):
                yield step._replace(label=(*label, *step.label))

    # -- answers ----------------------------------------------------------------------------------------

    def _hears(self, state: State, i: int, reply: tuple[Any, ...], label: Label) -> Iterator[Step]:
        client = state.clients[i]
        answered = client.answered or (client.call is not None and client.call[0] == "acquire")
        calm = client._replace(call=None, sent=0, answered=answered)
        match reply:
            case ("granted", token, slots, ttl):
                yield Step(
                    label, i, with_client(state, i, self._granted(client, calm, token, slots, ttl))
                )
            case ("renewed", ttl) if client.mode == "held":
                left = max(client.left, self.protocol.left(ttl, client.sent))
                yield Step(label, i, with_client(state, i, calm._replace(mode="held", left=left)))
            case ("renewed", _):
                # An earlier copy claimed the grant and its answer is lost: ask for the token again.
                for step in self._asks(state, i, calm):
                    yield step._replace(label=(*label, *step.label))
            case ("queued", ago):
                mode = "held" if client.mode == "held" else "queued"
                trip = self._trip(client, ago)
                yield Step(label, i, with_client(state, i, calm._replace(mode=mode, trip=trip)))
            case ("refused",) if client.mode == "held":
                yield Step(label, i, with_client(state, i, calm))  # it can't have more units now
            case ("refused",) if client.asked == 1:
                yield Step(label, i, with_client(state, i, Client(born=client.born)))
            case _:
                yield Step(label, i, with_client(state, i, lost(calm)))

    def _trip(self, client: Client, ago: int) -> Trip | None:
        """The round trip of an answer that it waits, if a push can be believed after it."""
        if self.world.confirms or client.sent >= LONG_AGO:
            return None
        if not self.world.clock:
            return None if client.doubtful or client.mode == "held" else (client.sent, None)
        return (client.sent, ago) if ago < LONG_AGO else None

    def _granted(
        self, client: Client, calm: Client, token: int, slots: tuple[int, ...], ttl: float
    ) -> Client:
        if client.mode == "held" and token < client.token:
            return calm._replace(mode="held")  # late: it was granted again since, by a push
        left = max(self.protocol.left(ttl, client.sent), client.left)
        if left <= 0:
            return lost(calm)
        return calm._replace(
            mode="held",
            left=left,
            token=token,
            slots=slots,
            units=len(slots),
            trip=None,
            doubtful=False,
        )

    # -- faults -----------------------------------------------------------------------------------------

    def _fault(self, state: State) -> Step:
        state = state._replace(faults=state.faults - 1)
        if self.world.fault == "revoke":
            served, _, flaw = self._served(state, 0, ("revoke",))
            return Step(("revoke",), FAULT, served, flaw)
        if self.world.fault == "wipe":  # the data is lost, and the clock has moved on
            stamp = state.ghost.top + 1
            state = state._replace(book=FrozenBook(sights=state.book.sights), stamp=stamp)
        return Step((self.world.fault,), FAULT, state._replace(net=()))


# ---- the small changes of which all steps are made -----------------------------------------------


def id_of(i: int, client: Client) -> str:
    return f"{'ABC'[i]}{client.born}"


def with_client(state: State, i: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:i], client, *state.clients[i + 1 :]))


def posted(state: State, message: Message) -> State:
    return state._replace(net=tuple(sorted((*state.net, message))))


def taken(state: State, message: Message) -> State:
    net = list(state.net)
    net.remove(message)
    return state._replace(net=tuple(net))


def wants(state: State, push: Message) -> bool:
    client = state.clients[push[1]]
    return push[2] == id_of(push[1], client) and client.mode in ("asking", "queued")


def lost(client: Client) -> Client:
    """What is left to a client of a lease that it no longer believes in: a paused one may still write."""
    born, asked, answered = client.born, client.asked, client.answered
    return Client(born, "lost", None, 0, asked, answered, token=client.token)


def a_tick_later(client: Client, ticks: int) -> Client:
    left = max(client.left - ticks, 0)
    trip = client.trip
    if trip is not None:
        own, answered = trip[0] + ticks, None if trip[1] is None else trip[1] + 1
        trip = (own, answered) if max(own, answered or 0) < LONG_AGO else None
    sent = min(client.sent + ticks, LONG_AGO) if client.call is not None else 0
    if client.mode == "held" and left == 0:  # past its deadline a lease is lost, for good
        return lost(client)
    return client._replace(left=left, trip=trip, sent=sent)


def message_a_tick_later(message: Message) -> Message:
    if message[0] == "p":
        return (*message[:-1], min(message[-1] + 1, LONG_AGO))
    if message[0] == "r" and message[2][0] == "queued":
        return (*message[:2], ("queued", min(message[2][1] + 1, LONG_AGO)))
    return message
