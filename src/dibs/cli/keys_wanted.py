"""The options of `dibs keys create`."""

from collections.abc import Iterator, Sequence

import click

from dibs.cli.output import Shape
from dibs.config import seconds
from dibs.server.keys_shapes import MAX_LIFE, check_name
from dibs.server.scopes import lacks_slash, read_prefix, read_scopes, reduced, written


def wanted(
    name: str, scopes: Sequence[str], prefixes: Sequence[str], expires_in: str | None
) -> Shape:
    """The body of `POST /v1/keys`. Raises `UsageError`."""
    try:
        check_name(name)
        shape: Shape = {
            "name": name,
            "scopes": sorted(read_scopes(scopes)),
            "prefixes": [written(each) for each in reduced(map(read_prefix, prefixes)) if each],
        }
        if expires_in is not None:
            shape["expires_in"] = _lifetime(expires_in)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return shape


def slashes_added(prefixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Prefixes without a slash at their end, each with the directory that it stands for."""
    return ((each, written(read_prefix(each))) for each in prefixes if lacks_slash(each))


def _lifetime(text: str) -> float:
    found = seconds(text, "--expires-in")
    if not 1 <= found <= MAX_LIFE:
        raise ValueError(f"--expires-in is {text}: it must be 1 s to 100 years")
    return found
