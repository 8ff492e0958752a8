"""Where a setting comes from: the keyword, the environment, the file, and then the default."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dibs import settings_file
from dibs.config import READERS, UNSET, LockConfig, flag
from dibs.core.names import Kind
from dibs.errors import UnsafeTiming
from dibs.settings_file import shown

_LITERAL = re.compile(r"[a-z0-9_.-]+", re.ASCII)
_OF_SHELLS = str.maketrans("-.", "__")

_users: dict[str, str] = {}
"""Whose the variables that begin so are: in a variable's name `-` and `.` are `_`, so two may share them."""

type Readers = Mapping[str, Callable[[str], Any]]
"""How each setting that may be there is read from a text."""


class Source(Protocol):
    """A place where settings stand."""

    def get(self, field: str) -> Any:
        """What stands there; None for nothing."""

    def place(self, field: str) -> str:
        """Where it stands, or would."""


def told(source: Source, field: str) -> str:
    """Where it stands, and what."""
    return f"{source.place(field)} is {shown(source.get(field))}"


class Variables:
    """The variables of the environment that begin alike."""

    def __init__(self, prefix: str, environ: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._environ = environ

    def get(self, field: str) -> str | None:
        """The variable's text."""
        return self._environ.get(self._prefix + field.upper())

    def place(self, field: str) -> str:
        """The variable."""
        return self._prefix + field.upper()


def configured(
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> LockConfig:
    """By keyword, then this name's variables, those for all, the file (this name, then all), defaults.

    `DIBS_LOCK__CART__TTL` is for the lock named "cart", `DIBS_LOCK__MY_CART__TTL` for one named "my-cart";
    names of anything but `[a-z0-9_.-]` have no variables of their own. `env_prefix` replaces
    `DIBS_LOCK__CART__`. `env_load=False` and `DIBS_ENV_LOAD=false` leave out all of them, and the file.
    """
    values = {field: value for field, value in given.items() if value is not UNSET}
    if env_load and _loads(environ):
        for source in _sources(kind, name, READERS, env_prefix, environ, for_all=True):
            for field in _filled(values, source, READERS):
                _check_alone(field, values[field], source)
    return LockConfig(**values)


def _check_alone(field: str, value: Any, source: Source) -> None:
    """What is wrong with a setting by itself is the fault of the place where it stands."""
    blaming([told(source, field)], lambda: LockConfig(**{field: value}))


def configured_together[C](
    make: Callable[..., C],
    readers: Readers,
    kind: Kind,
    name: str | bytes,
    given: Mapping[str, Any],
    *,
    env_prefix: str | None = None,
    env_load: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> C:
    """Settings that only go together: from the same places, less those for all."""
    values = {field: value for field, value in given.items() if value is not UNSET}
    places: list[str] = []
    if env_load and _loads(environ):
        for source in _sources(kind, name, readers, env_prefix, environ, for_all=False):
            places += [told(source, field) for field in _filled(values, source, readers)]
    return blaming(places, lambda: make(**values))


def _loads(environ: Mapping[str, str]) -> bool:
    """Whether settings are read at all. Raises `ValueError` for a variable that is neither yes nor no."""
    said = environ.get("DIBS_ENV_LOAD")
    return not said or blaming([f"DIBS_ENV_LOAD is {shown(said)}"], lambda: flag(said))


def shell_name(name: str) -> str:
    """A name as part of a variable's name that shells can export."""
    return name.upper().translate(_OF_SHELLS)


def check_sole(prefix: str, name: str) -> None:
    """Raises `ValueError` if another name of this program has the variables that begin so."""
    other = _users.setdefault(prefix, name)
    if other != name:
        raise ValueError(
            f"{prefix}… is for {other!r} and for {name!r}, as - and . are _ in variables: set both in the "
            "file that DIBS_CONFIG names"
        )


def own_prefix(kind: Kind, name: str | bytes, env_prefix: str | None) -> str | None:
    """What the variables begin with that are for this name only; None if it has none of its own."""
    if env_prefix is not None:
        return env_prefix
    if isinstance(name, str) and _LITERAL.fullmatch(name):
        return f"DIBS_{kind.upper()}__{shell_name(name)}__"
    return None


def _sources(
    kind: Kind,
    name: str | bytes,
    readers: Readers,
    env_prefix: str | None,
    environ: Mapping[str, str],
    *,
    for_all: bool,
) -> list[Source]:
    own = own_prefix(kind, name, env_prefix)
    prefixes = [own, "DIBS_" if for_all else None]
    variables = "\n".join(("", *environ))  # one look costs less than to miss one for each setting
    found: list[Source] = [
        Variables(prefix, environ)
        for prefix in prefixes
        if prefix is not None and f"\n{prefix}" in variables
    ]
    if own is not None and env_prefix is None and f"\n{own}" in variables:
        assert isinstance(name, str)
        check_sole(own, name)
    file = settings_file.named_in(environ)
    if file is not None:
        if (section := file.section(kind, name)) is not None:
            section.refuse_others(readers)
            found.append(section)
        if for_all:
            found.append(file.top)
    return found


def _filled(values: dict[str, Any], source: Source, readers: Readers) -> list[str]:
    """Take what stands there and is not known yet; tell which that was."""
    taken = []
    for field, read in readers.items():
        if field not in values and (found := source.get(field)) is not None:
            values[field] = _read(source, field, found, read) if isinstance(found, str) else found
            taken.append(field)
    return taken


def _read(source: Source, field: str, text: str, read: Callable[[str], Any]) -> Any:
    return blaming([told(source, field)], lambda: read(text))


def blaming[C](places: list[str], make: Callable[[], C]) -> C:
    """Make something of settings, and let an error say where those stand. Raises `ValueError`."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        if not places:
            raise
        kind = UnsafeTiming if isinstance(error, UnsafeTiming) else ValueError
        raise kind(f"{'; '.join(places)}: {error}") from error
