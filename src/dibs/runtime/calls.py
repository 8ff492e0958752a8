"""A batch that fails as a whole is tried again in halves."""

from collections.abc import Awaitable, Callable, Sequence

from dibs.errors import BackendUnavailable, DibsError
from dibs.model import Command, Reply

type Outcome = Reply | DibsError
"""Result of one command of a batch: its reply, or the error that its part of the batch failed with."""

type Apply = Callable[[Sequence[Command]], Awaitable[Sequence[Reply]]]


async def apply_in_halves(apply: Apply, commands: Sequence[Command]) -> Sequence[Outcome]:
    """Apply a batch. If it fails as a whole, try its halves: a bad command costs the others nothing."""
    first = await _whole(apply, commands)
    if not _failed(first) or len(commands) == 1:
        return first
    return await halves(apply, commands)


async def halves(apply: Apply, commands: Sequence[Command]) -> Sequence[Outcome]:
    """Apply the halves of a batch that failed. If both fail the store is away: nothing smaller is tried."""
    middle = len(commands) // 2
    parts = commands[:middle], commands[middle:]
    found = [await _whole(apply, part) for part in parts]
    failed = [_failed(outcomes) for outcomes in found]
    if any(failed) and not all(failed):
        bad = failed.index(True)
        if len(parts[bad]) > 1:
            found[bad] = await halves(apply, parts[bad])
    return [*found[0], *found[1]]


def _failed(outcomes: Sequence[Outcome]) -> bool:
    return isinstance(outcomes[0], BackendUnavailable)


async def _whole(apply: Apply, commands: Sequence[Command]) -> Sequence[Outcome]:
    """Try once: return a reply for each, or the same error for each."""
    try:
        return await apply(commands)
    except DibsError as error:
        return [error] * len(commands)
