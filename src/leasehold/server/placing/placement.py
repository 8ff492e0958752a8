"""A store as a place where directories may live."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import NotConfigured
from leasehold.server.placing import words

if TYPE_CHECKING:
    from leasehold.server.config import Placement


@dataclass(frozen=True, slots=True)
class Place:
    """Its name, and where it is; both empty where nobody has said."""

    name: str
    provider: str = ""
    region: str = ""

    @property
    def shown(self) -> str:
        """Its name and all that is known of it."""
        known = ", ".join(filter(None, (self.provider, self.region)))
        return f"{self.name} ({known or 'of no provider and no region'})"


def places_of(placements: Sequence["Placement"]) -> tuple[Place, ...]:
    """The places of a configuration, the default one first. Raises `NotConfigured` for one without a name."""
    for each in placements:
        if not each.name.strip():
            raise NotConfigured(f"a [[placement]] has no name: {each.url}")
    return tuple(
        Place(
            each.name,
            words.provider(each.provider, (each.provider,)) if each.provider else "",
            words.region(each.region, (each.region,)) if each.region else "",
        )
        for each in placements
    )
