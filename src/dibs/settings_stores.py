"""Which stores the environment and the settings file name."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dibs import settings_file
from dibs.config import seconds
from dibs.settings import Source, Variables, blaming, check_sole, shell_name, told

_VARIABLE = re.compile(r"DIBS_STORES__(.+?)__URL", re.ASCII)


type Told = tuple[str | None, ...]
"""What the variables say that decide over one store."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A store, as settings name it."""

    url: str = field(repr=False)
    """With its password."""
    options: dict[str, Any]
    place: str
    """Where the URL stands."""


def configured_store(
    name: str | None = None, environ: Mapping[str, str] = os.environ
) -> StoreSettings | None:
    """The store of that name, else of whoever names none; None where no setting says which that is."""
    file = settings_file.named_in(environ)
    table = None if file is None else file.top if name is None else file.stores.get(name)
    prefix = prefix_of(name)
    if name is not None and f"{prefix}URL" in environ:
        check_sole(prefix, name)
    return _store(prefix, environ, table)


def variables_of(name: str | None, environ: Mapping[str, str] = os.environ) -> Told:
    """What tells one outcome of `configured_store` from another."""
    return tuple(map(environ.get, _variables_for(name)))


@cache
def _variables_for(name: str | None) -> tuple[str, ...]:
    own = (prefix_of(name) + key.upper() for key in settings_file.STORE_KEYS)
    return *own, settings_file.VARIABLE


def prefix_of(name: str | None) -> str:
    """What the variables of a named store, or of the default one, begin with."""
    return "DIBS_" if name is None else f"DIBS_STORES__{shell_name(name)}__"


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
