"""Pushes of several stores on their way into one mailroom."""

from typing import TYPE_CHECKING

from dibs.model import Wakeup

if TYPE_CHECKING:
    from dibs.server.placing.runtime import PlacedRuntime


class PlaceMail:
    """One store's. Takes the place of its `runtime.letterbox`.

    Where there are several, a pushed grant is not told as such, as a directory may have moved since: its
    waiter asks, and has the answer of the place where the key lives now.
    """

    def __init__(self, placed: "PlacedRuntime") -> None:
        self._placed = placed

    def deliver(self, wakeup: Wakeup) -> None:
        if wakeup.event == "granted" and not self._placed.atlas.is_lone():
            wakeup = Wakeup(wakeup.key, wakeup.lease, wakeup.inbox, "head")
        self._placed.letterbox.deliver(wakeup)

    def remind(self, wakeup: Wakeup) -> None:
        self._placed.letterbox.remind(wakeup)

    def recheck(self) -> None:
        self._placed.letterbox.recheck()
