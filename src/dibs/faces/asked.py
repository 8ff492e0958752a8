"""Which resource a client's method is about."""

from collections.abc import Sequence

from dibs.core.names import KINDS, Kind, key_of
from dibs.model import Status


def resource_key(resource: str | bytes | Status, kind: Kind | None) -> bytes:
    """The key of a resource that is told by its name and kind (None: a lock), or by a status of it."""
    if not isinstance(resource, Status):
        return key_of("lock" if kind is None else kind, resource)
    if kind is not None and kind != resource.kind:
        raise ValueError(f"kind is {kind!r}, and the status is that of a {resource.kind}")
    return resource.key


def kinds_asked(kind: Kind | None) -> Sequence[str]:
    """That kind, or all. Raises `ValueError` for an unknown one."""
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: the kinds are {', '.join(KINDS)}")
    return (kind,)
