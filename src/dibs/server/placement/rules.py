"""Restrictions: in which regions, and at which providers, a directory may live."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from dibs.core.names import shown
from dibs.errors import NotConfigured
from dibs.stores.redact import redacted

REGIONS: dict[str, tuple[str, ...]] = {
    "XA": ("asia",),
    "XC": ("prc", "china"),
    "XE": ("eu", "europe"),
    "XF": ("africa",),
    "XN": ("namerica", "northamerica"),
    "XO": ("oceania",),
    "XQ": ("antarctica",),
    "XS": ("samerica", "southamerica"),
    "XU": ("uk", "unitedkingdom"),
}
"""Parts of the world, and their other names."""

COUNTRIES = {
    "XA": "AE BH HK ID IL IN JP KR MY QA SA SG TH TW",
    "XC": "CN",
    "XE": "AT BE BG CH CY CZ DE DK EE ES FI FR GR HR HU IE IS IT LI LT LU LV MT NL NO PL PT RO SE SI SK",
    "XF": "ZA",
    "XN": "CA MX US",
    "XO": "AU NZ",
    "XS": "BR CL",
    "XU": "GB",
}
"""The countries of each part: in Europe the EEA and Switzerland, elsewhere those with public clouds."""

PROVIDERS = ("AWS", "AZURE", "DIGITALOCEAN", "EQUINIX", "GCP")
"""As Seaplane's SDK spells them. It raises for any other spelling."""

_PART_OF = {country: part for part, those in COUNTRIES.items() for country in those.split()}
_REGION = {
    **{code.lower(): code for code in REGIONS},
    **{alias: code for code, aliases in REGIONS.items() for alias in aliases},
    **{country.lower(): country for country in _PART_OF},
}
_PROVIDER = {name.lower(): name for name in PROVIDERS}


def region_code(text: str, others: Iterable[str] = ()) -> str:
    """A region in its one spelling. Raises `ValueError` if it is neither known nor one of `others`."""
    parts = ", ".join(f"{code} ({names[-1]})" for code, names in REGIONS.items())
    countries = ", ".join(sorted(_PART_OF))
    return _known(text, _REGION, others, "region", f"one of {parts}, a country ({countries})")


def provider_name(text: str, others: Iterable[str] = ()) -> str:
    """A provider in its one spelling. Raises `ValueError` if it is neither known nor one of `others`."""
    return _known(text, _PROVIDER, others, "provider", f"one of {', '.join(PROVIDERS)}")


def _known(text: str, known: dict[str, str], others: Iterable[str], what: str, these: str) -> str:
    word = text.strip().lower()
    own = {each.lower(): each for each in others if each}
    joined = "".join(each for each in word if not each.isspace() and each not in "-_")
    found = known.get(word) or own.get(word) or known.get(joined)
    if found is None:
        raise ValueError(f"unknown {what} {text!r}: write {these}, or the {what} of a placement")
    return found


def is_unknown_country(region: str) -> bool:
    """Whether a region looks like a country's code, and belongs to no known part of the world."""
    return len(region) == 2 and region.isalpha() and region.lower() not in _REGION


def lies_in(region: str, wanted: str) -> bool:
    """Whether a region is, or is part of, another."""
    region, wanted = region.lower(), wanted.lower()
    part = _PART_OF.get(_REGION.get(region, ""), "")
    return region == wanted or part.lower() == wanted


@dataclass(frozen=True, slots=True)
class Place:
    """A placement as restrictions see it. Provider and region are empty if the settings lack them."""

    name: str
    provider: str = ""
    region: str = ""

    @property
    def shown(self) -> str:
        """Name, provider and region, for people."""
        known = ", ".join(filter(None, (self.provider, self.region)))
        return f"{self.name} ({known or 'of no provider and no region'})"


class PlacementSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store, and where it is: `[[placement]]` in the file of settings."""

    name: str
    url: str
    provider: str = ""
    region: str = ""
    was: str = ""
    """Its earlier URL, if the same store has another one now."""

    @property
    def place(self) -> Place:
        """The placement as restrictions see it. Raises `NotConfigured` if it has no name."""
        if not self.name.strip():
            raise NotConfigured(f"a [[placement]] has no name: {redacted(self.url)}")
        provider, region = self.provider, self.region
        return Place(
            self.name,
            provider_name(provider, (provider,)) if provider else "",
            region_code(region, (region,)) if region else "",
        )


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """Regions and providers that are allowed or denied. An empty list of allowed values allows everything."""

    regions_allowed: tuple[str, ...] = ()
    regions_denied: tuple[str, ...] = ()
    providers_allowed: tuple[str, ...] = ()
    providers_denied: tuple[str, ...] = ()

    def normalized(self, places: Iterable[Place]) -> "Rule":
        """The same rule in one spelling, each word once.

        Raises `ValueError` for an unknown word, and for one that is both allowed and denied.
        """
        known = tuple(places)
        regions = [place.region for place in known]
        providers = [place.provider for place in known]
        rule = Rule(
            _each_once(region_code(each, regions) for each in self.regions_allowed),
            _each_once(region_code(each, regions) for each in self.regions_denied),
            _each_once(provider_name(each, providers) for each in self.providers_allowed),
            _each_once(provider_name(each, providers) for each in self.providers_denied),
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
        """Why a directory under this rule may not live there; None if it may."""
        return self._region_objection(place.region) or self._provider_objection(place.provider)

    def _region_objection(self, region: str) -> str | None:
        allowed, denied = self.regions_allowed, self.regions_denied
        if not region and (allowed or denied):
            return 'its region is unknown (set region = "DE" in its [[placement]])'
        if any(lies_in(region, each) for each in denied):
            return f"region {region} is denied"
        if allowed and not any(lies_in(region, each) for each in allowed):
            return f"region {region} is not among {', '.join(allowed)}"
        return None

    def _provider_objection(self, provider: str) -> str | None:
        allowed, denied = self.providers_allowed, self.providers_denied
        if not provider and (allowed or denied):
            return 'its provider is unknown (set provider = "AWS" in its [[placement]])'
        if provider in denied:
            return f"provider {provider} is denied"
        if allowed and provider not in allowed:
            return f"provider {provider} is not among {', '.join(allowed)}"
        return None


def _each_once(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


# -- directories within directories -----------------------------------------------------------------


class Unsatisfiable(Exception):
    """No placement is allowed. The text names the rule that excludes each."""


def around(name: bytes) -> Iterator[bytes]:
    """The directories that contain a name or a directory: the innermost first, `b""` last.

    A directory, which ends in a slash, contains itself.
    """
    end = len(name)
    while (end := name.rfind(b"/", 0, end)) >= 0:
        yield name[: end + 1]
    yield b""


def lives_in(homes: Container[bytes], name: bytes) -> bytes:
    """The innermost directory around a name that has a home; `b""` if none has."""
    return next((each for each in around(name) if each in homes), b"")


def nearest[T](found: Mapping[bytes, T], name: bytes) -> T | None:
    """The value of the innermost directory around a name that has one."""
    return next((found[each] for each in around(name) if each in found), None)


def objections(rules: Mapping[bytes, Rule], directory: bytes, place: Place) -> Iterator[str]:
    """Why a directory may not live there, by each rule around it."""
    for each in around(directory):
        objection = rules[each].objection(place) if each in rules else None
        if objection is not None:
            yield f"{place.shown}: {objection}, by the restriction on {directory_shown(each)}"


def allowed_places(
    rules: Mapping[bytes, Rule], directory: bytes, places: Sequence[Place]
) -> list[Place]:
    """The placements that a directory may use, in the order of the list. Raises `Unsatisfiable`."""
    found = [each for each in places if next(objections(rules, directory, each), None) is None]
    if not found:
        reasons = [text for each in places for text in objections(rules, directory, each)]
        raise Unsatisfiable(
            f"no placement is allowed for {directory_shown(directory)}: {'; '.join(reasons)}"
        )
    return found


def chosen_place(
    rules: Mapping[bytes, Rule],
    orders: Mapping[bytes, str],
    directory: bytes,
    now_at: str,
    places: Sequence[Place],
) -> str:
    """The placement that a directory should have: the ordered one, else the current one, else the first.

    Raises `Unsatisfiable`.
    """
    names = [each.name for each in allowed_places(rules, directory, places)]
    ordered = nearest(orders, directory)
    if ordered in names:
        return ordered
    return now_at if now_at in names else names[0]


def directory_shown(directory: bytes) -> str:
    """A directory, for people."""
    return shown(directory) if directory else "everything"
