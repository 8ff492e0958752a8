"""Ids under which something may be held that nobody was told of.

A grant that could not be told stays in its store all the same, and so may that of an Acquire that had no
answer, or of which a copy is still on its way. That it is *renewed* would then be the first that its caller
hears of it.
"""

from dibs.model import Acquire, Command, Renew, Resize

MOST = 10_000
"""So many are remembered; the oldest are forgotten first."""


class Untold:
    """Those of one server. It knows only of what it has sent and withheld itself."""

    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids: dict[tuple[bytes, str], None] = {}
        """With their keys; the latest comes last. As a rule there are none."""

    def add(self, command: Command) -> None:
        """Something may be held under its id, and nobody was told."""
        if not isinstance(command, Acquire | Renew | Resize):
            return
        name = command.key, command.id
        self.ids.pop(name, None)  # it is the latest again
        self.ids[name] = None
        if len(self.ids) > MOST:
            del self.ids[next(iter(self.ids))]

    def has(self, command: Command) -> bool:
        """Whether a reply that it holds would be the first that anybody hears of it."""
        ids = self.ids
        return (
            bool(ids) and isinstance(command, Renew | Resize) and (command.key, command.id) in ids
        )

    def settle(self, command: Command) -> None:
        """It was told that it holds."""
        if self.ids and isinstance(command, Acquire | Renew | Resize):
            self.ids.pop((command.key, command.id), None)
