"""What comes of a call: each of its commands applied, and the answer."""

from dataclasses import replace

from dibs.core.names import fingerprint
from dibs.errors import DibsError
from dibs.model import Acquire, Command, Failed, Granted, Reply, Status
from dibs.stores.temporal.broker.clock import BrokerClock
from dibs.stores.temporal.broker.desk import Desk
from dibs.stores.temporal.broker.parts import AN_ANSWER, curt, in_brief, size_of
from dibs.stores.temporal.broker.post import Telling
from dibs.stores.temporal.protocol.owners import is_unicode, owner_of
from dibs.stores.temporal.protocol.wire import (
    FORMAT,
    Answer,
    Call,
    Packed,
    pack_reply,
    too_new,
    unpack_command,
)


class Clerk:
    """Applies calls to the desk, one command after the other."""

    def __init__(self, desk: Desk, clock: BrokerClock, telling: Telling, *, by_hand: bool) -> None:
        self._desk = desk
        self._clock = clock
        self._telling = telling
        self._by_hand = by_hand

    def answer(self, call: Call, inbox: str, granted: list[str]) -> Answer:
        """`granted` gets the ids whose owners first hear of their grant by this."""
        replies: list[Packed] = []
        size = 0
        for command in call.commands:
            reply = self._reply(command, call, inbox, granted)
            if isinstance(reply, Status) and inbox:
                reply = in_brief(reply, _leases(call))
            replies.append(pack_reply(curt(reply) if size > AN_ANSWER else reply))
            size += size_of(replies[-1]) if len(call.commands) > 1 else 0
        return Answer(replies, call.number, self._clock.now())

    def status(self) -> Reply:
        """Who holds and who waits, as a query asks."""
        return self._desk.status(*self._clock.of_query())

    def _reply(self, packed: Packed, call: Call, inbox: str, granted: list[str]) -> Reply:
        """No error of ours may get out, as one may end a workflow: all that is held would be lost."""
        try:
            if self._by_hand:
                self._clock.by_hand = call.at
            command = self._command(packed, call)
            if isinstance(command, Failed):
                return command
            return self._applied(command, call, inbox, granted)
        except DibsError as error:
            return Failed("invalid", str(error))

    def _applied(self, command: Command, call: Call, inbox: str, granted: list[str]) -> Reply:
        now, stamp = self._clock.read()
        if isinstance(command, Acquire) and inbox and not command.inbox:
            command = replace(command, inbox=inbox)
        known = self._desk.book.get(getattr(command, "id", "")) is not None
        reply, notifications = self._desk.apply(command, now, stamp)
        if isinstance(command, Acquire) and isinstance(reply, Granted) and not known:
            granted.append(command.id)
        if call.fast and owner_of(inbox):
            self._desk.mark_fast(command, (call.workflow_id, call.run_id))
        self._telling.push(notifications)
        return reply

    def _command(self, packed: Packed, call: Call) -> Command | Failed:
        newer = newer_call(call)
        if newer:
            return Failed("invalid", newer)
        if call.at is not None and not self._by_hand:
            return Failed("invalid", _OWN_TIME)
        try:
            return unpack_command(packed, self._desk.key)
        except ValueError as error:
            return Failed("invalid", str(error))


_OWN_TIME = (
    "the call says what time it is, and this broker was not started with a clock of a test's own: "
    "it goes by the server's time"
)


def _leases(call: Call) -> set[str]:
    """Those that a call is about."""
    ids = [command.get("id") for command in call.commands]
    return {fingerprint(each) for each in ids if isinstance(each, str) and is_unicode(each)}


def newer_call(call: Call) -> str | None:
    """Why a call of a later release is refused; None for one that is not."""
    return too_new("the call", call.format, "the worker of this broker", FORMAT)
