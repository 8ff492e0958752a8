"""Ids of leases that the service has made itself, for callers who brought none.

Of such a one only the server that made it ever asks for a grant, and it knows whether that may still be under
way. So they can be told from those that callers bring, under which any server may be asked at any time: what
was released under one of those is remembered for a while, and a tomb for each would be dear.
"""

from dibs.primitives.ids import new_id

_MARK = "own_"
"""A caller's own id that begins so is released as one of these, and so is not remembered."""


def own_id() -> str:
    """A new one."""
    return _MARK + new_id()


def is_own(lease_id: str) -> bool:
    """Whether the service has made it."""
    return lease_id.startswith(_MARK)
