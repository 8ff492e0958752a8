"""A restriction: which regions and providers a directory may live with."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dibs.server.placing import words
from dibs.server.placing.placement import Place


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed, and what is not. An empty list of what is allowed allows everything."""

    regions_allowed: tuple[str, ...] = ()
    regions_denied: tuple[str, ...] = ()
    providers_allowed: tuple[str, ...] = ()
    providers_denied: tuple[str, ...] = ()

    def spelt(self, places: Iterable[Place]) -> "Rule":
        """The same in one spelling, each word once.

        Raises `ValueError` for a word that nobody knows, and for one that is allowed and denied.
        """
        known = tuple(places)
        regions = [place.region for place in known]
        providers = [place.provider for place in known]
        rule = Rule(
            _each_once(words.region(each, regions) for each in self.regions_allowed),
            _each_once(words.region(each, regions) for each in self.regions_denied),
            _each_once(words.provider(each, providers) for each in self.providers_allowed),
            _each_once(words.provider(each, providers) for each in self.providers_denied),
        )
        for allowed, denied in (
            (rule.regions_allowed, rule.regions_denied),
            (rule.providers_allowed, rule.providers_denied),
        ):
            both = [each for each in allowed if each in denied]
            if both:
                raise ValueError(f"{', '.join(both)}: both allowed and denied")
        return rule

    def objection(self, place: Place) -> str | None:
        """Why something under this rule may not live there; None where it may."""
        return self._region_objection(place.region) or self._provider_objection(place.provider)

    def _region_objection(self, region: str) -> str | None:
        if not region and (self.regions_allowed or self.regions_denied):
            return 'its region is unknown (set region = "DE" in its [[placement]])'
        if any(words.lies_in(region, each) for each in self.regions_denied):
            return f"region {region} is denied"
        if self.regions_allowed and not _lies_in_any(region, self.regions_allowed):
            return f"region {region} is not among {', '.join(self.regions_allowed)}"
        return None

    def _provider_objection(self, provider: str) -> str | None:
        if not provider and (self.providers_allowed or self.providers_denied):
            return 'its provider is unknown (set provider = "AWS" in its [[placement]])'
        if provider in self.providers_denied:
            return f"provider {provider} is denied"
        if self.providers_allowed and provider not in self.providers_allowed:
            return f"provider {provider} is not among {', '.join(self.providers_allowed)}"
        return None


def _lies_in_any(region: str, wanted: Sequence[str]) -> bool:
    return any(words.lies_in(region, each) for each in wanted)


def _each_once(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))
