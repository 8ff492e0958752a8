"""`dibs restrict …`: limit a directory to regions and providers."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.directories import decode, in_base64, segment, server, service, shown
from dibs.cli.exits import FREE, needing
from dibs.cli.output import Shape
from dibs.cli.voice import Voice

HEAD = (
    "API",
    "DIRECTORY",
    "STATE",
    "REGIONS ALLOWED",
    "REGIONS DENIED",
    "PROVIDERS ALLOWED",
    "PROVIDERS DENIED",
    "PLACEMENT",
)

_LISTS: tuple[str, ...] = (
    "regions_allowed",
    "regions_denied",
    "providers_allowed",
    "providers_denied",
)


class _Aliased(click.Group):
    """Accepts other words for its verbs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        meant = {
            "show": "get",
            "ls": "list",
            "put": "set",
            **dict.fromkeys(("del", "remove", "rm"), "delete"),
        }
        return super().resolve_command(ctx, [meant.get(args[0], args[0]), *args[1:]])


@click.group(
    cls=_Aliased,
    epilog=options.examples(
        "dibs restrict set locks shop/ --region XE",
        "dibs restrict list --server https://locks.example.com",
    ),
)
def restrict() -> None:
    """Limit the locks of a directory to regions and providers.

    API is always `locks`. A restriction also applies to all directories below.
    """


@restrict.command(epilog=options.examples("dibs restrict get locks shop/"))
@click.argument("api")
@click.argument("directory", metavar="DIR")
@in_base64
@decode
@options.no_header
@server
@options.as_json
def get(
    api: str,
    directory: str,
    is_base64: bool,
    server: str | None,
    as_json: bool,
    **how: bool,
) -> int:
    """Show the restriction on a directory. Exits with 1 if there is none."""
    found = _ask("GET", api, directory, server, is_base64=is_base64)
    if found is None:
        return _none(directory, as_json=as_json)
    _print([found], as_json=as_json, **how)
    return 0


@restrict.command(name="list", epilog=options.examples("dibs restrict list --json"))
@click.argument("api", required=False)
@decode
@options.no_header
@server
@options.as_json
def listing(api: str | None, server: str | None, as_json: bool, **how: bool) -> int:
    """List the restrictions that your API key may see."""
    with needing("http"):
        _print(list(_all(api, server)), as_json=as_json, **how)
    return 0


@restrict.command(
    name="set",
    epilog=options.examples(
        "dibs restrict set locks shop/ --region XE",
        "dibs restrict set locks shop/ --exclude-provider aws",
    ),
)
@click.argument("api")
@click.argument("directory", metavar="DIR")
@click.option("--provider", multiple=True, metavar="NAMES", help="Allowed providers, or `all`.")
@click.option("--exclude-provider", multiple=True, metavar="NAMES", help="Denied providers.")
@click.option(
    "--region", multiple=True, metavar="NAMES", help="Allowed regions, such as XE, europe or DE."
)
@click.option("--exclude-region", multiple=True, metavar="NAMES", help="Denied regions.")
@in_base64
@server
@options.as_json
def set_(
    api: str,
    directory: str,
    provider: tuple[str, ...],
    exclude_provider: tuple[str, ...],
    region: tuple[str, ...],
    exclude_region: tuple[str, ...],
    is_base64: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Restrict a directory; replaces its earlier restriction.

    Repeat an option, or separate names by commas. A directory that must move does so once it is
    idle: see `dibs move`.
    """
    lists = map(_names, (region, exclude_region, provider, exclude_provider))
    body: Shape = dict(zip(_LISTS, lists, strict=True))
    _ask("PUT", api, directory, server, body, is_base64=is_base64)
    return _done("Set", "set_restriction", api, directory, as_json=as_json)


@restrict.command(epilog=options.examples("dibs restrict delete locks shop/"))
@click.argument("api")
@click.argument("directory", metavar="DIR")
@in_base64
@server
@options.as_json
def delete(api: str, directory: str, is_base64: bool, server: str | None, as_json: bool) -> int:
    """Delete a restriction. The directory stays where it is. Exits with 1 if there is none."""
    if _ask("DELETE", api, directory, server, is_base64=is_base64) is None:
        return _none(directory, as_json=as_json)
    return _done("Deleted", "deleted_restriction", api, directory, as_json=as_json)


def _ask(
    method: str,
    api: str,
    directory: str,
    server: str | None,
    body: Shape | None = None,
    *,
    is_base64: bool,
) -> Any:
    with needing("http"):
        found = segment(directory, is_base64=is_base64)
        if not found:
            raise click.UsageError("DIR must be a directory, such as shop/")
        return service(server).ask(method, f"/v1/restrict/{quote(api, safe='')}{found}", body)


def _all(api: str | None, server: str | None) -> Iterator[Shape]:
    """Every page."""
    path = "/v1/restrict/" if api is None else f"/v1/restrict/{quote(api, safe='')}/"
    query, remote = "", service(server)
    while True:
        page = remote.ask("GET", path + query)
        yield from page["restrictions"]
        if page["next_key"] is None:
            return
        query = f"?from=base64:{page['next_key']}"
        if api is None:
            query += f"&from_api={page['next_api']}"


def _names(given: Sequence[str]) -> list[str]:
    """The names in a list; `all` means no restriction."""
    names = [name.strip() for text in given for name in text.split(",")]
    return [name for name in names if name and name.lower() != "all"]


def _none(directory: str, *, as_json: bool) -> int:
    Voice(as_json).say("error", f"{directory} has no restriction", exit_code=FREE)
    return FREE


def _done(verb: str, what: str, api: str, directory: str, *, as_json: bool) -> int:
    if as_json:
        from dibs.cli.output import emit

        emit({what: {"api": api, "directory": directory}})
    else:
        print(f"{verb} a restriction on directory {directory} in {api} API")
    return 0


def _print(found: Sequence[Shape], *, is_decoded: bool, headless: bool, as_json: bool) -> None:
    if as_json:
        from dibs.cli.output import emit

        for each in found:
            emit(each)
        return
    rows = (_row(each, is_decoded=is_decoded) for each in found)
    for row in rows if headless else (HEAD, *rows):
        print("\t".join(row))


def _row(each: Shape, *, is_decoded: bool) -> tuple[str, ...]:
    lists = (f"[{','.join(each['details'][name])}]" for name in _LISTS)
    directory = shown(each["directory"], is_decoded=is_decoded)
    return (each["api"], directory, each["state"], *lists, each["placement"])
