"""A batch that fails as a whole is tried again in halves: a bad command costs the others nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Reply

type Outcome = Reply | DibsError
type Apply = Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]]


class Outcomes(NamedTuple):
    """What became of each command."""

    each: Sequence[Outcome]
    resent: bool
    """Some may have reached the store more than once."""


async def apply_in_halves(apply: Apply, commands: Sequence[Command]) -> Outcomes:
    """Every command's reply, or the error that its part of the batch ended with.

    A store that is away fails both halves; then nothing smaller is tried.
    """
    first = await _whole(apply, commands)
    failed = isinstance(first[0], BackendUnavailable)
    if not failed or len(commands) == 1:
        return Outcomes(first, resent=False)
    return Outcomes(await _halves(apply, commands), resent=True)


async def _halves(apply: Apply, commands: Sequence[Command]) -> Sequence[Outcome]:
    middle = len(commands) // 2
    halves = commands[:middle], commands[middle:]
    found = [await _whole(apply, half) for half in halves]
    away = [isinstance(outcomes[0], BackendUnavailable) for outcomes in found]
    if any(away) and not all(away):
        bad = away.index(True)
        if len(halves[bad]) > 1:
            found[bad] = await _halves(apply, halves[bad])
    return [*found[0], *found[1]]


async def _whole(apply: Apply, commands: Sequence[Command]) -> Sequence[Outcome]:
    """One try: a reply for each, or the same error for each."""
    try:
        return await apply(commands)
    except DibsError as error:
        return [error] * len(commands)
