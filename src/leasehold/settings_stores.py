"""Which stores the environment and the settings file name."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from leasehold import settings_file
from leasehold.config import seconds
from leasehold.settings import Source, Variables, blaming, told

_VARIABLE = re.compile(r"LEASEHOLD_STORES__(.+?)__URL", re.ASCII)


class StoreSettings(NamedTuple):
    """A store, as settings name it."""

    url: str
    options: dict[str, Any]
    place: str
    """Where the URL stands."""


def default_store(environ: Mapping[str, str] = os.environ) -> StoreSettings | None:
    """The store of whoever names none; None where no setting says which that is."""
    file = settings_file.named_in(environ)
    return _store("LEASEHOLD_", environ, file.top if file is not None else None)


def named_store(name: str, environ: Mapping[str, str] = os.environ) -> StoreSettings | None:
    """The store of that name; None where no setting has it."""
    file = settings_file.named_in(environ)
    return _store(prefix_of(name), environ, file.stores.get(name) if file is not None else None)


def prefix_of(name: str) -> str:
    """What the variables of a named store begin with."""
    return f"LEASEHOLD_STORES__{name.upper()}__"


def names_of_stores(environ: Mapping[str, str] = os.environ) -> set[str]:
    """The names that settings give to stores."""
    file = settings_file.named_in(environ)
    found = {match[1].lower() for match in map(_VARIABLE.fullmatch, environ) if match}
    return found | (file.stores.keys() if file is not None else set())


def _store(
    prefix: str, environ: Mapping[str, str], table: settings_file.Table | None
) -> StoreSettings | None:
    sources: list[Source] = [Variables(prefix, environ)]
    if table is not None:
        sources.append(table)
    named = _first(sources, "url")
    if named is None:
        return None
    options = {
        key: _seconds(source, key)
        for key in settings_file.STORE_TIMES
        if (source := _first(sources, key)) is not None
    }
    return StoreSettings(named.get("url"), options, named.place("url"))


def _seconds(source: Source, key: str) -> float:
    return blaming([told(source, key)], lambda: seconds(source.get(key), key))


def _first(sources: list[Source], key: str) -> Source | None:
    """The first that has it; an empty variable has nothing."""
    return next((source for source in sources if source.get(key) not in (None, "")), None)
