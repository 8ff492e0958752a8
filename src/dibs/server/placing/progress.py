"""How far a move is, by what stands at the place that is being left: pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from dibs.model import Status
from dibs.server.placing.guards import STANDS, Guards


@dataclass(frozen=True, slots=True)
class Standing:
    """What a look at the old place has told."""

    keys: int = 0
    """On how many keys something stands there that is no guard."""
    ends_in: float = 0.0
    """When the last of it ends, unless it is renewed; seconds from now."""
    last_token: int = 0
    """The greatest token seen."""
    last_key: bytes = b""
    """Whose that is."""
    fading: tuple[Status, ...] = ()
    """The keys whose guards should be prolonged."""

    @property
    def is_over(self) -> bool:
        """Nothing stands there any more."""
        return not self.keys


def standing(found: Iterable[Status], epoch: int, guards: Guards) -> Standing:
    """What stands there amid a move, among these keys."""
    keys, ends_in, last_token = 0, 0.0, 0
    fading: list[Status] = []
    last_key = b""
    for status in found:
        if status.last_token > last_token:
            last_token, last_key = status.last_token, status.key
        others = guards.others(status.key, epoch, status.holders)
        ours = [each for each in status.holders if each not in others]
        if ours and min(each.expires_in for each in ours) < STANDS / 2:
            fading.append(status)
        if others or (status.waiting and not ours):
            keys += 1
            ends_in = max([ends_in, *(each.expires_in for each in others)])
    return Standing(keys, ends_in, last_token, last_key, tuple(fading))


def is_waited_for(status: Status, epoch: int, guards: Guards) -> bool:
    """Whether somebody waits behind a guard of that time."""
    ours = guards.leases(status.key, epoch)
    return bool(status.waiting) and any(each.lease in ours for each in status.holders)
