"""What is said to a permit's workflow and what it says to its holder. Only data, as payloads carry it."""

from dataclasses import dataclass

FORMAT = 1

RELEASE = "release"
"""A signal to a permit: its holder is done."""
EXTEND = "extend"
"""A signal and an update: the lease stands for so many seconds from now."""
ADOPT = "adopt"
"""A signal: another workflow holds it from now on."""
HAND_OVER = "hand_over"
"""A signal: its holder's run ends and the next one adopts it, so that this end cancels nothing."""
RETIRE = "retire"
"""A signal: its holder was stopped, and what it began may run on for as long as the quarantine."""
STATUS = "status"
"""A query."""
NEWS = "dibs-permit"
"""The signal by which a permit speaks to its holder."""

ARMED = "armed"
ENDING = "ending"
ENDED = "ended"

RELEASED = "released"
EXPIRED = "lease_expired"
HOLDER_GONE = "holder_gone"
"""Its holder had ended before it heard of the permit."""
QUARANTINE_OVER = "quarantine_over"


@dataclass
class PermitSlotInput:
    """How a permit begins. The first three fields are all that a holder must give."""

    resource: str
    slot: str
    lease_seconds: float
    armed: bool = False
    """Its holder, the workflow that started it, is told when it stands."""
    max_hold_seconds: float | None = None
    """No renewal takes it past so long after its start."""
    quarantine_seconds: float = 0.0
    """Cancelled, as when its holder ends, or told to retire, it keeps the slot for so long yet."""
    note: str = ""
    """Why; for people."""
    format: int = FORMAT


@dataclass
class PermitNews:
    """What a permit tells its holder."""

    permit: str
    """The run ID of the permit."""
    what: str
    """`armed`, `ending` or `ended`."""
    token: int = 0
    """When its run began, in microseconds since 1970: of one slot, it grows with every permit."""
    deadline: float = 0.0
    """When its lease ends, as it stands, in seconds since 1970."""
    outcome: str = ""
    """Of one that ended."""


@dataclass
class Adoption:
    """Who holds a permit from now on."""

    workflow_id: str
    run_id: str
    lease_seconds: float


@dataclass
class PermitStatus:
    """What a permit knows of itself."""

    resource: str
    slot: str
    token: int
    deadline: float
    holder: str
    """The workflow ID of its holder; empty if it is no workflow's."""
    note: str = ""
    retiring: bool = False
    """Nobody holds it any more, and it keeps its slot for its quarantine."""
