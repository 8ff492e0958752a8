"""What the driver writes down besides what workers see: who died, and whose hold an operator ended.

They are events of the history like others, told apart by what stands in `resource`.
"""

import re
from typing import NamedTuple

from leasehold.testing.history import Event

KILLED = "killed"
"""That process is dead: what it did, it does no more."""
CLEARED = "cleared"
"""An operator freed these slots of a key: whoever had them under a token up to this one has them no more."""
AGAIN = "again"
"""Of a grant: it is one that was told before, and is relied on again after a while."""
STRUCK = "struck"
"""That holder (a workflow ID, in `lease`) was terminated, cancelled, reset, or ran out of time."""


class LeaseName(NamedTuple):
    """What tells the leases of a history apart."""

    workflow: str
    run: str
    turn: int
    permit_run: str
    token: int

    def __str__(self) -> str:
        return "|".join(map(str, self))


def lease_name(text: str) -> LeaseName:
    """The way back."""
    workflow, run, turn, permit_run, token = text.split("|")
    return LeaseName(workflow, run, int(turn), permit_run, int(token))


def killed(at: float, process: int) -> Event:
    return Event(at, "disturbed", process=process, resource=KILLED)


def cleared(at: float, key: str, slots: tuple[int, ...], token: int) -> Event:
    """No slots are all slots."""
    return Event(at, "disturbed", key, token=token, slots=slots, resource=CLEARED)


def struck(at: float, workflow: str) -> Event:
    return Event(at, "disturbed", lease=workflow, resource=STRUCK)


_SLOT = re.compile(r"/(\d+)$")


def slot_key(key: str, slot: int) -> str:
    """A key of its own for one slot, where tokens are the slot's."""
    return f"{key}/{slot}"
