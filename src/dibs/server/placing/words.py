"""Regions and providers by their names: known ones in one spelling, and whatever placements call theirs."""

from collections.abc import Iterable

REGIONS = {
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
"""Parts of the world, and what else they are called."""

COUNTRIES = {
    "XA": "AE BH HK ID IN JP KR SG TW",
    "XE": "BE CH DE ES FI FR IE IT NL PL RO SE",
    "XF": "ZA",
    "XN": "CA US",
    "XO": "AU",
    "XS": "BR CL",
    "XU": "GB",
}
"""Which countries lie in which part."""

PROVIDERS = ("AWS", "AZURE", "DIGITALOCEAN", "EQUINIX", "GCP")
"""As Seaplane's SDK spells them; it raises for any other spelling."""

_PART_OF = {country: part for part, those in COUNTRIES.items() for country in those.split()}
_REGION = {
    **{code.lower(): code for code in REGIONS},
    **{alias: code for code, aliases in REGIONS.items() for alias in aliases},
    **{country.lower(): country for country in _PART_OF},
}
_PROVIDER = {name.lower(): name for name in PROVIDERS}


def region(text: str, others: Iterable[str] = ()) -> str:
    """A region as it is spelt here. Raises `ValueError` for one that is neither known nor of `others`."""
    parts = ", ".join(f"{code} ({names[-1]})" for code, names in REGIONS.items())
    countries = ", ".join(sorted(_PART_OF))
    return _spelt(text, _REGION, others, "region", f"one of {parts}, a country ({countries})")


def provider(text: str, others: Iterable[str] = ()) -> str:
    """A provider as it is spelt here. Raises `ValueError` likewise."""
    return _spelt(text, _PROVIDER, others, "provider", f"one of {', '.join(PROVIDERS)}")


def _spelt(text: str, known: dict[str, str], others: Iterable[str], what: str, these: str) -> str:
    word = text.strip().lower()
    own = {each.lower(): each for each in others if each}
    found = known.get(word) or own.get(word) or known.get(_in_one(word))
    if found is None:
        raise ValueError(f"unknown {what} {text!r}: write {these}, or the {what} of a placement")
    return found


def _in_one(word: str) -> str:
    """`north america`, `north-america` and `north_america` as one word."""
    return "".join(each for each in word if not each.isspace() and each not in "-_")


def lies_in(place: str, wanted: str) -> bool:
    """Whether a region is, or is part of, another."""
    place, wanted = place.lower(), wanted.lower()
    part = _PART_OF.get(_REGION.get(place, ""), "")
    return place == wanted or part.lower() == wanted
