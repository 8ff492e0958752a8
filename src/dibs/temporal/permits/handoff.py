"""What of a permit goes from a run to the next: small, and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dibs.backends.temporal.protocol.formats import too_new
from dibs.temporal.failures import Misused

FORMAT = 1


@dataclass
class Handoff:
    """A permit on its way. As an argument it may be declared as `Handoff` or as `dict`."""

    resource: str
    slots: list[str]
    run_id: str
    """Of the permit, or of what granted it."""
    token: int | None
    ttl: float
    acquired_at: float
    until: float
    """When `max_hold` ends, in seconds since 1970."""
    renews: bool
    """Whether it is renewed."""
    mode: str = "slot"
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    format: int = FORMAT

    @classmethod
    def of(cls, given: "Handoff | Mapping[str, Any]") -> "Handoff":
        """As it came. Raises `Misused` for what is none, or of a later release."""
        if isinstance(given, Mapping):
            known = {each.name for each in fields(cls)}
            try:
                given = cls(**{name: value for name, value in given.items() if name in known})
            except TypeError as error:
                raise Misused(f"reattach() takes what detach() gave: {error}") from error
        if not isinstance(given, Handoff):
            raise Misused(f"reattach() takes what detach() gave, not {given!r}")
        newer = too_new("this handoff", given.format, "the worker of this workflow", FORMAT)
        if newer:
            raise Misused(newer)
        return given
