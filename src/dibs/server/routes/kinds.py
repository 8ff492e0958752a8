"""A name without a kind: a lock, or whatever else there is of that name.

`capacity=` and `mode=` say what is acquired, so whoever goes on with it need not say that again. The lock is
asked first, by the routes, as most are that; only where there is nothing the other kinds are asked, together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dibs.core.names import KINDS, shown
from dibs.errors import DibsError
from dibs.model import (
    Command,
    Failed,
    Granted,
    Inspect,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Status,
)
from dibs.runtime.port import Answer, Told
from dibs.server.call import Call
from dibs.server.own_ids import is_own
from dibs.server.problems import Problem
from dibs.server.routes.telling import failure
from dibs.server.service import PATIENCE

FIRST = "lock"
"""What a name is, until it is known otherwise."""

_OTHERS = tuple(kind for kind in KINDS if kind != FIRST)


class _Found(NamedTuple):
    """Where something is."""

    command: Command
    answer: Answer


# ---- renewing -------------------------------------------------------------------------------------


async def renewed(call: Call, command: Renew) -> Answer | None:
    """What comes of it under the other kind that has its id; None: none has.

    Raises what went wrong under one of them, if it is none of the others.
    """
    found = await _those(call, _for_others(call, command), has_id)
    if not found:
        return None
    answer = found[0].answer
    reply, accounts, key_id = answer.reply, call.service.accounts, call.principal.key_id
    # the kinds that were asked behind it know nothing of the id, and so it was taken off the account
    if type(reply) is Renewed or type(reply) is Granted:
        accounts.leased(key_id, command.id, reply.ttl)
    elif type(reply) is Queued:
        accounts.queued(key_id, command.id, max(command.ttl, PATIENCE))
    return answer


def has_id(reply: Reply) -> bool:
    """Whether a renewal was answered where its id is: also if it was taken away there."""
    if type(reply) is Lost:
        return reply.reason == "revoked"
    return type(reply) in (Renewed, Granted, Queued)


# ---- releasing ------------------------------------------------------------------------------------


async def released(call: Call, lease_id: str) -> bool:
    """Give up what has this id under another kind; tell whether anything had. Raises as `renewed`."""
    service, plain = call.service, Release(call.key(FIRST), lease_id)
    found = await _those(call, _for_others(call, plain), _is_released)
    if is_own(lease_id):
        return bool(found)
    buried = service.doubts.buried(plain)
    if found:  # a late copy of its Acquire can come there only
        again = [replace(buried, key=each.command.key) for each in found]
        _check(await service.ask_all(call.principal, again))
        return True
    # its Acquire may be under way to any of them, or have come just now
    return bool(await _those(call, _for_others(call, buried), _is_released))


def _is_released(reply: Reply) -> bool:
    return type(reply) is Released


# ---- seeing, and ending ---------------------------------------------------------------------------


async def held(call: Call) -> Answer | None:
    """The status of the first other kind that somebody holds. Raises as `renewed`."""
    found = await _those(call, _for_others(call, Inspect(call.key(FIRST))), is_held)
    return found[0].answer if found else None


def is_held(reply: Reply) -> bool:
    """Whether it tells of somebody who holds it."""
    return type(reply) is Status and bool(reply.holders)


async def only_one(call: Call, lease: str | None) -> str:
    """The kind that is held: of which there is that lease, or any (None). If none is, a lock.

    Raises `Problem`, 400, if there are several: which of them is to be ended has to be said.
    """
    looks = [Inspect(call.key(kind)) for kind in KINDS]
    told = await call.service.ask_all(call.principal, looks)
    _check(told)
    found = [kind for kind, each in zip(KINDS, told, strict=True) if _has_lease(each, lease)]
    if len(found) > 1:
        raise Problem(
            "malformed",
            f"{shown(call.name)} is held under several kinds: {', '.join(found)}. "
            "Say which is meant, with kind=",
        )
    return found[0] if found else FIRST


def _has_lease(told: Told, lease: str | None) -> bool:
    """Whether it has that one, or any; units that nobody holds, but are kept closed, have none."""
    if type(told) is not Answer or not isinstance(told.reply, Status):
        return False
    return any(each.lease and lease in (None, each.lease) for each in told.reply.holders)


# ---- asking ---------------------------------------------------------------------------------------


def _for_others(call: Call, command: Command) -> Sequence[Command]:
    """The same for each of the other kinds."""
    return [replace(command, key=call.key(kind)) for kind in _OTHERS]


async def _those(
    call: Call, commands: Sequence[Command], is_it: Callable[[Reply], bool]
) -> Sequence[_Found]:
    """Those with such a reply. Raises what went wrong, if there are none: it may be there."""
    told = await call.service.ask_all(call.principal, commands)
    found = [
        _Found(command, each)
        for command, each in zip(commands, told, strict=True)
        if type(each) is Answer and is_it(each.reply)
    ]
    if not found:
        _check(told)
    return found


def _check(told: Iterable[Told]) -> None:
    """Raises what went wrong with any of them."""
    for each in told:
        if isinstance(each, DibsError):
            raise each
        if isinstance(each.reply, Failed):
            raise failure(each.reply)
