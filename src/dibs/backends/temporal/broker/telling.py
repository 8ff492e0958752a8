"""What a broker tells of its own accord, and what it takes back where nobody is left to be told."""

from collections.abc import Callable, Sequence
from typing import Any

from dibs.backends.temporal.broker.clock import BrokerClock
from dibs.backends.temporal.broker.desk import Desk
from dibs.backends.temporal.broker.parts import Bundle
from dibs.backends.temporal.broker.post import Post
from dibs.backends.temporal.protocol.owners import Owner, inbox_of, owner_of
from dibs.backends.temporal.protocol.wire import Answer, pack_wakeup
from dibs.model import Wakeup


class Telling:
    """Between the desk, which says who is to be told, and the post, which says who has heard it."""

    def __init__(
        self,
        key: str,
        desk: Desk,
        clock: BrokerClock,
        changed: Callable[[], None],
        state: dict[str, Any] | None,
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._changed = changed
        self._missed: dict[str, list[str]] = {}
        """Inboxes of workflows that have closed, and the grants that they never learnt of."""
        self.post = Post(key, self._landed, state)

    def answer(self, inbox: str, answer: Answer, granted: Sequence[str]) -> None:
        """Tell a workflow what came of its call; of these grants it learns by that."""
        bundle = self.post.to(inbox)
        bundle.answers.append(answer)
        bundle.granted += granted

    def push(self, wakeups: list[Wakeup]) -> None:
        """Tell what has changed to whom it concerns."""
        granted = self._desk.ids_granted(wakeups)
        now, stamp = self._clock.read()
        for inbox, entry_ids in granted.items():
            if owner_of(inbox):
                wakeups = self._desk.claimed(entry_ids, wakeups, now, stamp)
                self.post.to(inbox).granted += entry_ids
        for wakeup in wakeups:
            if wakeup.inbox and not _needless(wakeup):
                self.post.to(wakeup.inbox).wakeups.append(pack_wakeup(wakeup))

    # -- who has closed -----------------------------------------------------------------------------

    def _landed(self, inbox: str, bundle: Bundle, there: bool) -> None:
        """Nobody holds what was granted to a workflow that had closed by then.

        A mailbox that isn't there proves nothing: its client may ask without one.
        """
        if owner_of(inbox) and not there:
            self._missed.setdefault(inbox, []).extend(bundle.granted)
        self._changed()

    def closed(self, runs: Sequence[Owner], waiters: Sequence[Owner]) -> None:
        """What these runs hold ends with them, and these waiters wait no longer."""
        self.push(self._desk.closed(runs, *self._clock.read()))
        for waiter in waiters:
            self._missed.setdefault(inbox_of(*waiter), [])
        self._changed()

    def take_back(self) -> None:
        """Give up what closed workflows held: of all at once, as each costs a look at the whole book."""
        missed, self._missed = self._missed, {}
        if missed:
            self.push(self._desk.gone(missed, *self._clock.read()))


def _needless(wakeup: Wakeup) -> bool:
    """A workflow at the head need not look after the time: the broker does."""
    return wakeup.event == "head" and owner_of(wakeup.inbox) is not None
