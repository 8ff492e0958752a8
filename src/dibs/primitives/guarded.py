"""A block that is for the leader only: refused to others, and interrupted when the term ends."""

from typing import Any

from dibs.errors import LeaseLost
from dibs.primitives.campaign import CampaignBase
from dibs.primitives.term import TermBase
from dibs.runtime.port import Guard


class GuardedBase[TermT: TermBase]:
    """What the guarded blocks of both worlds share; made by campaigns only."""

    def __init__(self, campaign: CampaignBase[TermT]) -> None:
        self._campaign = campaign
        self._term: TermT
        self._guard: Guard
        self.value: Any = None

    def set(self, value: object = None) -> None:
        """The term has ended."""
        self._guard.fire()

    async def wait(self, timeout: float | None) -> bool:
        """Nobody waits for a block."""
        return False

    def _begin(self) -> TermT:
        self._guard = self._campaign._running().guard()
        self._guard.enter()
        self._term = term = self._campaign._rely(self)
        return term

    def _end(self, exc: BaseException | None) -> None:
        term, ours = self._term, self._guard.leave(exc)
        self._campaign._rely_no_more(self)
        if term._stands:
            return
        if ours:
            raise term._loss() from exc
        if exc is not None and not isinstance(exc, LeaseLost):
            exc.add_note(str(term._loss()))
