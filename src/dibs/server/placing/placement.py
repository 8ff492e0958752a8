"""A store as a place where directories may live."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dibs.errors import NotConfigured
from dibs.server.placing import words
from dibs.stores.redact import redacted

if TYPE_CHECKING:
    from dibs.server.config import Placement


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


def place_of(placement: "Placement") -> Place:
    """Where a placement of the settings is. Raises `NotConfigured` for one without a name."""
    if not placement.name.strip():
        raise NotConfigured(f"a [[placement]] has no name: {redacted(placement.url)}")
    provider, region = placement.provider, placement.region
    return Place(
        placement.name,
        words.provider(provider, (provider,)) if provider else "",
        words.region(region, (region,)) if region else "",
    )
