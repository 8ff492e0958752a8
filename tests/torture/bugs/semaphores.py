"""Bugs of semaphores: how many units there are, and which."""

from dataclasses import replace

from dibs.model import MANY, Acquire, Command, Granted, Reply
from tests.torture.bugs.bug import Apply, Bug, twisted

WHERE = ("semaphore", "elastic")


def one_too_many(command: Command, apply: Apply) -> Reply:
    if isinstance(command, Acquire) and command.capacity < MANY:
        return apply(replace(command, capacity=command.capacity + 1))
    return apply(command)


def always_the_first_slot(command: Command, apply: Apply) -> Reply:
    reply = apply(command)
    if isinstance(reply, Granted) and len(reply.slots) == 1:
        return replace(reply, slots=(0,))
    return reply


def holders_instead_of_units(command: Command, apply: Apply) -> Reply:
    if not isinstance(command, Acquire) or command.units == 1:
        return apply(command)
    reply = apply(replace(command, units=1))
    if isinstance(reply, Granted):
        return replace(reply, slots=(*reply.slots, reply.slots[0] + 1))
    return reply


def slots_from_the_top(command: Command, apply: Apply) -> Reply:
    """By the capacity that each caller has in mind, instead of the store's."""
    reply = apply(command)
    if isinstance(command, Acquire) and isinstance(reply, Granted) and command.capacity < MANY:
        return replace(reply, slots=tuple(command.capacity - 1 - slot for slot in reply.slots))
    return reply


BUGS = {
    "one too many": Bug(frozenset({"overlap"}), WHERE, store=twisted(one_too_many)),
    "a slot twice": Bug(frozenset({"slot"}), WHERE, store=twisted(always_the_first_slot)),
    "holders are counted instead of units": Bug(
        frozenset({"overlap"}), WHERE, store=twisted(holders_instead_of_units)
    ),
    "slots by the caller's capacity": Bug(
        frozenset({"slot"}), WHERE, store=twisted(slots_from_the_top)
    ),
}
