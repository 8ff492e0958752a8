"""Adverts: what waiting clients tell each other of themselves, to find circles (see `primitives/circles.py`).

Their keys have the fingerprints of leases for names, which lie in no directory. So whoever may read, or
acquire, what an advert says is waited for may read that advert, or write it.
"""

from collections.abc import Iterable
from dataclasses import replace

from dibs.core.waits import read
from dibs.model import Acquire, Command, Holder, Refused, Reply, Revoke, Status
from dibs.server.principal import Principal, Scope


def name_for(command: Command) -> bytes | None:
    """For which name a command on an advert needs its scope; None: for any."""
    if type(command) is Acquire:
        return _waited_for(command.note)
    return b"" if type(command) is Revoke else None


def as_told(who: Principal, reply: Reply) -> Reply:
    """A reply about an advert's key, without the adverts that somebody may not read."""
    if type(reply) is Status:
        return replace(reply, holders=_told(who, reply.holders), waiters=())
    if type(reply) is Refused:
        return replace(reply, holders=_told(who, reply.holders))
    return reply


def _told(who: Principal, holders: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple([each for each in holders if who.may(Scope.READ, _waited_for(each.note))])


def _waited_for(note: str) -> bytes:
    """The name that is waited for. What can't be read may be any: as if it were all of them."""
    try:
        return read(note)[0].key.partition(b":")[2]
    except ValueError:
        return b""
