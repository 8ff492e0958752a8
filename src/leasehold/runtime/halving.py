"""A batch that fails as a whole is tried again in halves: a bad command costs the others nothing."""

from collections.abc import Sequence

from leasehold.backends.port import Backend
from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Command, Reply

type Outcome = Reply | LeaseholdError


async def apply_in_halves(backend: Backend, commands: Sequence[Command]) -> list[Outcome]:
    """Every command's reply, or the error that its part of the batch ended with.

    A store that is away fails both halves; then nothing smaller is tried.
    """
    try:
        return list(await backend.apply(commands))
    except LeaseholdError as error:
        if len(commands) == 1 or not isinstance(error, BackendUnavailable):
            return [error] * len(commands)
    middle = len(commands) // 2
    halves = commands[:middle], commands[middle:]
    outcomes = [await _whole(backend, half) for half in halves]
    if all(isinstance(outcome, LeaseholdError) for outcome in outcomes):
        return [outcome for half, outcome in zip(halves, outcomes, strict=True) for _ in half]
    found: list[Outcome] = []
    for half, outcome in zip(halves, outcomes, strict=True):
        if isinstance(outcome, LeaseholdError):
            found += await apply_in_halves(backend, half) if len(half) > 1 else [outcome]
        else:
            found += outcome
    return found


async def _whole(backend: Backend, commands: Sequence[Command]) -> list[Reply] | LeaseholdError:
    try:
        return list(await backend.apply(commands))
    except LeaseholdError as error:
        return error
