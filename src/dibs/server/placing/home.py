"""Where a directory lives, and the steps of its move.

    settled at A → moving from A to B → settled at B, or at A again

The list of placements holds all homes, so one compare-and-set on that record writes every step.
While a directory is `moving`, it still lives at the old place and nothing new is granted in it.
"""

from typing import Literal

from msgspec import Struct, structs

from dibs.errors import Corrupt

SLACK = 1 << 32
"""Tokens (microseconds) added to the floor by a move: no key is further ahead of its store's clock."""

HIGHEST = (1 << 53) - (1 << 40)
"""The highest floor. It leaves some tokens, as all are below 2^53."""

type Phase = Literal["settled", "moving"]


class Home(Struct, frozen=True, omit_defaults=True):
    """Where the names of a directory live, except those of directories within it that have a home."""

    place: str
    epoch: int = 0
    """How often it has begun to move."""
    floor: int = 0
    """Tokens up to this one may have been given at an earlier place."""
    to: str = ""
    """Where it moves to; empty while it is settled."""

    @property
    def phase(self) -> Phase:
        """Which step it is at."""
        return "moving" if self.to else "settled"

    def frozen(self, to: str) -> "Home":
        """Begin to move: grant nothing new until it has arrived or stays."""
        return Home(self.place, self.epoch + 1, self.floor, to)

    def thawed(self) -> "Home":
        """Stay at the old place."""
        return structs.replace(self, to="")

    def arrived(self, last_token: int) -> "Home":
        """Live at the new place. Raises `Corrupt` if no tokens are left above `last_token`."""
        floor = max(self.floor, last_token) + SLACK
        if floor > HIGHEST:
            raise Corrupt(
                f"tokens at {self.place} are at {last_token}: above that, too few are left"
            )
        return Home(self.to, self.epoch, floor)
