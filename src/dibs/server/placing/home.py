"""Where a directory lives, and the steps of its moves.

    settled at A ── begun ──> moving to B ── seal ──> sealed ── arrived ──> at B, clearing A ── cleared

Every step is written to the records by compare-and-set, and waits for what `mover` waits for. While it moves,
a key stays at A until nothing stands there. Once it is sealed, nothing stands at A and no grant of A is told
any more: what a late copy of a command might still bring about there is nobody's.
"""

from typing import Literal, get_args

from msgspec import Struct, structs

from dibs.errors import Corrupt

SLACK = 1 << 32
"""The floor rises by so much with every move: fewer tokens than that were given since the last one by any
key that was ahead of its store's clock."""

HIGHEST = (1 << 53) - (1 << 40)
"""No floor is above it: so some tokens are left above any, as all are below 2^53."""


type Phase = Literal["moving", "sealed", "clearing", "settled"]

_STEPS = get_args(Phase.__value__)


class Home(Struct, frozen=True, omit_defaults=True):
    """Where the names of a directory are, but for those of directories within it that have a home."""

    place: str
    epoch: int = 0
    """How often it has begun to move."""
    floor: int = 0
    """Tokens up to this one were given elsewhere, perhaps."""
    to: str = ""
    """Where it moves to."""
    sealed: bool = False
    """Nothing that is granted at the old place is told any more."""
    clearing: str = ""
    """Where it came from, while guards are left there."""
    since: float = 0.0
    """When this step was written, by that server's clock, for people."""
    parted: tuple[bytes, ...] = ()
    """Directories within that have a home of their own now, perhaps without a record yet: see `parting`."""

    @property
    def phase(self) -> Phase:
        """Which step it is at."""
        if self.to:
            return "sealed" if self.sealed else "moving"
        return "clearing" if self.clearing else "settled"

    @property
    def step(self) -> tuple[int, int]:
        """How far it has come; it only rises."""
        return self.epoch, _STEPS.index(self.phase)

    @property
    def places(self) -> tuple[str, ...]:
        """Where something of it may be held."""
        return (self.place, self.to) if self.to else (self.place,)

    @property
    def where(self) -> tuple[str, str, int, bool]:
        """What a command is sent by."""
        return self.place, self.to, self.epoch, self.sealed

    @property
    def of_parted(self) -> "Home":
        """The home of those that have parted from it, until they have a record: as it is itself."""
        return Home(self.place, self.epoch, self.floor)

    @property
    def is_at_the_top(self) -> bool:
        """There is no higher floor than its own."""
        return self.floor + SLACK > HIGHEST

    def begun(self, to: str, since: float) -> "Home":
        """It begins to move. Those that have parted from it have their records."""
        return Home(self.place, self.epoch + 1, self.floor, to, since=since)

    def seal(self, since: float) -> "Home":
        """Nothing stands at the old place any more."""
        return structs.replace(self, sealed=True, since=since)

    def arrived(self, last_token: int, since: float) -> "Home":
        """It lives at the new place; no token was given at the old one beyond `last_token`.

        Raises `Corrupt` if none would be left.
        """
        if self.is_at_the_top:
            raise Corrupt(
                "there is no floor above the one that it has, which rises with each move: it has moved more "
                "than a million times, or its record was changed by hand. This move is not finished, and "
                "there will be no other; its names go on"
            )
        floor = max(self.floor, last_token) + SLACK
        if floor > HIGHEST:
            raise Corrupt(f"tokens are at {last_token}, and above that there are too few")
        return Home(self.to, self.epoch, floor, clearing=self.place, since=since)

    def cleared(self, since: float) -> "Home":
        """The guards at the old place are gone."""
        return structs.replace(self, clearing="", since=since)
