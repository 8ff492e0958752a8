"""How much travels in one call, so that no call is ever too large for Temporal.

An update of more than 2 MB is taken by the server and can't be answered by any worker: it would stay in the
way of its key for ever.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from dibs.model import Command, Failed

LARGEST = 16_384
"""No command's texts may have more bytes together: the broker has to carry them all over to its next run."""

PARCEL = 262_144
"""No call's commands have more."""

TOO_LARGE = Failed("invalid", f"owner, note and reason may have {LARGEST} bytes here, and no more")


def is_too_large(commands: Sequence[Command]) -> bool:
    """One of them is, which then is alone."""
    return any(_size(command) > LARGEST for command in commands)


def _size(command: Command) -> int:
    return sum(len(part.encode()) for part in astuple(command) if isinstance(part, str))


def parcels(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    """In their order, none larger than it may be; what is too large by itself travels alone, not far."""
    start = size = 0
    for number, command in enumerate(commands):
        its = _size(command)
        if number > start and (size + its > PARCEL or its > LARGEST):
            yield commands[start:number]
            start, size = number, 0
        size += its
        if its > LARGEST:
            yield commands[start : number + 1]
            start, size = number + 1, 0
    if start < len(commands):
        yield commands[start:]
