"""Where a directory should live, by its own restriction and those of all directories around it."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from dibs.core.names import shown
from dibs.server.placing.placement import Place
from dibs.server.placing.rules import Rule


class Unsatisfiable(Exception):
    """No placement is allowed; says which rule excludes which."""


def around(name: bytes) -> Iterator[bytes]:
    """The directories in which a name, or a directory, lies, itself first if it is one; `b""` is the last."""
    end = len(name)
    while (end := name.rfind(b"/", 0, end)) >= 0:
        yield name[: end + 1]
    yield b""


def lives_in(homes: Container[bytes], name: bytes) -> bytes:
    """The directory whose home a name or a directory has; `b""` if none around it has one."""
    return next((each for each in around(name) if each in homes), b"")


def nearest[T](found: Mapping[bytes, T], name: bytes) -> T | None:
    """What is said for the innermost directory around a name."""
    return next((found[each] for each in around(name) if each in found), None)


def objections(rules: Mapping[bytes, Rule], directory: bytes, place: Place) -> Iterator[str]:
    """Why a directory may not live there, by each rule around it."""
    for each in around(directory):
        told = rules[each].objection(place) if each in rules else None
        if told is not None:
            yield f"{place.shown}: {told}, by the restriction on {directory_shown(each)}"


def allowed(rules: Mapping[bytes, Rule], directory: bytes, places: Sequence[Place]) -> list[Place]:
    """Where a directory may live, in the order of the configuration. Raises `Unsatisfiable`."""
    found = [each for each in places if next(objections(rules, directory, each), None) is None]
    if not found:
        told = [text for each in places for text in objections(rules, directory, each)]
        raise Unsatisfiable(
            f"no placement is allowed for {directory_shown(directory)}: {'; '.join(told)}"
        )
    return found


def chosen(
    rules: Mapping[bytes, Rule],
    pins: Mapping[bytes, str],
    directory: bytes,
    now_at: str,
    places: Sequence[Place],
) -> str:
    """Where a directory should live: where it was told to, else where it is, else at the first that may be.

    Raises `Unsatisfiable`.
    """
    names = [each.name for each in allowed(rules, directory, places)]
    pinned = nearest(pins, directory)
    if pinned in names:
        return pinned
    return now_at if now_at in names else names[0]


def check_all(
    rules: Mapping[bytes, Rule], directories: Iterable[bytes], places: Sequence[Place]
) -> None:
    """Raises `Unsatisfiable` for the first of these that can live nowhere."""
    for each in sorted(directories):
        allowed(rules, each, places)


def directory_shown(directory: bytes) -> str:
    """A directory, for people."""
    return shown(directory) if directory else "everything"
