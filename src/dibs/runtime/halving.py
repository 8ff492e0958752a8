"""A batch that fails as a whole is tried again in halves: a bad command costs the others nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from dibs.backends.port import Backend
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Reply

type Outcome = Reply | DibsError


class Outcomes(NamedTuple):
    """What became of each command."""

    each: Sequence[Outcome]
    resent: bool
    """Some may have reached the store more than once."""


async def apply_in_halves(backend: Backend, commands: Sequence[Command]) -> Outcomes:
    """Every command's reply, or the error that its part of the batch ended with.

    A store that is away fails both halves; then nothing smaller is tried.
    """
    first = await _whole(backend, commands)
    failed = isinstance(first[0], BackendUnavailable)
    if not failed or len(commands) == 1:
        return Outcomes(first, resent=False)
    return Outcomes(await _halves(backend, commands), resent=True)


async def _halves(backend: Backend, commands: Sequence[Command]) -> Sequence[Outcome]:
    middle = len(commands) // 2
    halves = commands[:middle], commands[middle:]
    found = [await _whole(backend, half) for half in halves]
    away = [isinstance(outcomes[0], BackendUnavailable) for outcomes in found]
    if any(away) and not all(away):
        bad = away.index(True)
        if len(halves[bad]) > 1:
            found[bad] = await _halves(backend, halves[bad])
    return [*found[0], *found[1]]


async def _whole(backend: Backend, commands: Sequence[Command]) -> Sequence[Outcome]:
    """One try: a reply for each, or the same error for each."""
    try:
        return await backend.apply(commands)
    except DibsError as error:
        return [error] * len(commands)
