"""`dibs restrict …` and `dibs move`: where the locks of a directory may be, and where they are."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.exits import FREE, needing
from dibs.cli.options import ClickDecorator, base64_name, bytes_of, decode
from dibs.cli.output import (
    Messages,
    Shape,
    counted,
    emit,
    phase_bar,
    print_table,
    printable,
    span,
)
from dibs.config import seconds
from dibs.stores.http.names import MARK, decoded, encoded

if TYPE_CHECKING:
    from dibs.cli.service import Remote

_LONGEST = 30 * 86400.0
"""Seconds of the longest deadline that a service accepts."""


def _seconds(ctx: click.Context, param: click.Parameter, given: str) -> float | None:
    """The deadline in seconds; None for `never`."""
    if given == "never":
        return None
    try:
        found = seconds(given, "--deadline")
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not 0 < found <= _LONGEST:
        raise click.BadParameter("--deadline must be more than 0 s and at most 30 days")
    return found


deadline_option: ClickDecorator = click.option(
    "--deadline",
    metavar="TIME",
    callback=_seconds,
    default="15m",
    show_default=True,
    help="Refuse new acquires at once, and revoke leases that remain after this time. "
    "`never`: refuse and revoke nothing, and move once the directory is idle.",
)


def service() -> "Remote":
    """The service to use. Raises `UsageError` if none is given."""
    url = options.url_asked()
    if url and options.store_asked():
        raise click.UsageError("give either --server or --store, not both")
    named = None if url else options.configured_service()
    found = url or (named.url if named else "")
    if not options.is_service(found):
        raise click.UsageError("no service given: use --server https://…, or set DIBS_URL to one")
    with needing("http"):
        from dibs.cli.service import Remote
    return Remote(found)


def segment(directory: str) -> str:
    """A directory in a path, with its slash; empty for `/`, which is everything."""
    raw = bytes_of(os.fsencode(directory)).removesuffix(b"/")
    return f"/{MARK}{encoded(raw)}/" if raw else ""


def shown(directory: str, *, is_decoded: bool | None) -> str:
    """A directory from a service's answer, for people."""
    if is_decoded is False:
        return directory
    return printable(decoded(directory).decode("utf-8", "backslashreplace")) + "/"


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


_MEANT = {
    "show": "get",
    "ls": "list",
    "put": "set",
    **dict.fromkeys(("del", "remove", "rm"), "delete"),
}


class _Aliased(click.Group):
    """Accepts other words for its verbs."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _MEANT.get(cmd_name, cmd_name))


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
@base64_name
@decode
@options.no_header
@options.server
@options.as_json
def get(
    api: str,
    directory: str,
    as_json: bool,
    **how: Any,
) -> int:
    """Show the restriction on a directory. Exits with 1 if there is none."""
    found = _ask("GET", api, directory)
    if found is None:
        return _none(directory, as_json=as_json)
    _print([found], as_json=as_json, **how)
    return 0


@restrict.command(name="list", epilog=options.examples("dibs restrict list --json"))
@click.argument("api", required=False)
@decode
@options.no_header
@options.server
@options.as_json
def listing(api: str | None, as_json: bool, **how: Any) -> int:
    """List the restrictions that your API key may see."""
    with needing("http"):
        _print(list(_all(api)), as_json=as_json, **how)
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
@deadline_option
@base64_name
@options.server
@options.as_json
def set_(
    api: str,
    directory: str,
    provider: tuple[str, ...],
    exclude_provider: tuple[str, ...],
    region: tuple[str, ...],
    exclude_region: tuple[str, ...],
    deadline: float | None,
    as_json: bool,
) -> int:
    """Restrict a directory; replaces its earlier restriction.

    Repeat an option, or separate names by commas. A directory that must move drains first: see
    `dibs move`.
    """
    given = region, exclude_region, provider, exclude_provider
    if not any(given):
        raise click.UsageError(
            "give at least one of --region, --exclude-region, --provider and --exclude-provider; "
            "`dibs restrict delete` removes a restriction"
        )
    lists = map(_names, given)
    body: Shape = {**dict(zip(_LISTS, lists, strict=True)), "deadline": deadline}
    _ask("PUT", api, directory, body)
    return _done("Set", "set_restriction", api, directory, as_json=as_json)


@restrict.command(epilog=options.examples("dibs restrict delete locks shop/"))
@click.argument("api")
@click.argument("directory", metavar="DIR")
@base64_name
@options.server
@options.as_json
def delete(api: str, directory: str, as_json: bool) -> int:
    """Delete a restriction. The directory stays where it is. Exits with 1 if there is none."""
    if _ask("DELETE", api, directory) is None:
        return _none(directory, as_json=as_json)
    return _done("Deleted", "deleted_restriction", api, directory, as_json=as_json)


def _ask(
    method: str,
    api: str,
    directory: str,
    body: Shape | None = None,
) -> Any:
    with needing("http"):
        found = segment(directory)
        if not found:
            raise click.UsageError("DIR must be a directory, such as shop/")
        return service().ask(method, f"/v1/restrict/{quote(api, safe='')}{found}", body)


def _all(api: str | None) -> Iterator[Shape]:
    """Every page."""
    path = "/v1/restrict/" if api is None else f"/v1/restrict/{quote(api, safe='')}/"
    query, remote = "", service()
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
    Messages(as_json).show("error", f"{directory} has no restriction", exit_code=FREE)
    return FREE


def _done(verb: str, what: str, api: str, directory: str, *, as_json: bool) -> int:
    if as_json:
        emit({what: {"api": api, "directory": directory}})
    else:
        print(f"{verb} a restriction on directory {directory} in {api} API")
    return 0


def _print(
    found: Sequence[Shape], *, is_decoded: bool | None, headless: bool, as_json: bool
) -> None:
    if as_json:
        for each in found:
            emit(each)
        return
    rows = (_row(each, is_decoded=is_decoded) for each in found)
    print_table(HEAD, rows, headless=headless, empty="There are no restrictions.")


def _row(each: Shape, *, is_decoded: bool | None) -> tuple[str, ...]:
    lists = (f"[{','.join(each['details'][name])}]" for name in _LISTS)
    directory = shown(each["directory"], is_decoded=is_decoded)
    return (each["api"], directory, each["state"], *lists, each["placement"])


_LOOKS_EVERY = 1.0

SAME_AGAIN = 30.0
"""Seconds between two lines in a log about one phase of a move: its times change all the time."""


@click.command(
    epilog=options.examples(
        "dibs move shop/               show where it lives", "dibs move shop/ --to eu --wait"
    )
)
@click.argument("directory", metavar="DIR")
@click.option("--to", "place", metavar="PLACEMENT", help="Placement, by its name in the settings.")
@deadline_option
@click.option("--wait", is_flag=True, help="Wait until it has moved, and report what it waits for.")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask before leases would be revoked.")
@base64_name
@options.server
@options.as_json
def move(
    directory: str,
    place: str | None,
    deadline: float | None,
    wait: bool,
    is_sure: bool,
    as_json: bool,
) -> int:
    """Move the locks of a directory to another placement; without --to, show where it lives.

    `/` is everything that has no placement of its own. New acquires in the directory are refused until it has
    moved. It moves once nobody holds, or waits for, any lock in it. At the deadline, the leases that remain
    are revoked. The service stores the request, so you can stop this command before the move.
    """
    with needing("http"):
        remote, path = service(), f"/v1/move{segment(directory)}"
        if place is not None:
            if deadline is not None and not is_sure and not as_json and sys.stdin.isatty():
                _confirm(directory, place, deadline, remote.ask("GET", path))
            remote.ask("PUT", path, {"to": place, "deadline": deadline})
        seen: Shape = remote.ask("GET", path)
        if wait and seen["to"]:
            with _watching(directory, Messages(as_json)) as watch:
                while seen["to"]:
                    watch(seen)
                    time.sleep(_LOOKS_EVERY)
                    seen = remote.ask("GET", path)
    if as_json:
        emit({"directory": directory} | seen)
    else:
        print(_describe(directory, seen))
    return 0


@contextmanager
def _watching(directory: str, messages: Messages) -> Iterator[Callable[[Shape], None]]:
    """Yields the function that shows how a move goes: a bar on a terminal, else a line now and then."""
    began, last_phase, shown_at = time.monotonic(), "", -inf

    def line(seen: Shape) -> None:
        nonlocal last_phase, shown_at
        now = time.monotonic()
        if seen["phase"] != last_phase or now - shown_at >= SAME_AGAIN:
            messages.show("moving", _describe(directory, seen))
            last_phase, shown_at = seen["phase"], now

    if not messages.is_live:
        yield line
        return
    messages.show("moving", f"{directory} moves once it is idle; Ctrl-C ends only this display")
    with phase_bar() as show:

        def draw(seen: Shape) -> None:
            so_far, left = time.monotonic() - began, _seconds_left(seen)
            show(_phase(seen, left), so_far, None if left is None else so_far + left)

        yield draw


def _seconds_left(seen: Shape) -> float | None:
    """Seconds until leases that remain are revoked, by this machine's clock; None without a deadline."""
    if not seen["until"]:
        return None
    return max(datetime.fromisoformat(seen["until"]).timestamp() - time.time(), 0.0)


def _phase(seen: Shape, left: float | None) -> str:
    """The phase of a move, in one short line."""
    text = str(seen["phase"])
    if seen["keys"]:
        text += (
            f": {counted(seen['keys'], 'name')} in use for {span(seen['ends_in'])} unless renewed"
        )
    if left is not None:
        text += f"; revoked in {span(left)}" if left else "; revoked"
    return text


def _confirm(directory: str, place: str, deadline: float, seen: Shape) -> None:
    """Ask whether to refuse new acquires and, later, revoke leases. Raises `Abort`."""
    if not seen["keys"]:
        return
    are = "is" if seen["keys"] == 1 else "are"
    click.echo(
        f"{counted(seen['keys'], 'name')} in {directory} {are} in use. New acquires are refused until it has "
        f"moved to {place}, and leases that remain in {deadline:.0f} s are revoked.",
        err=True,
    )
    click.confirm("Move it?", abort=True, err=True)


def _describe(directory: str, seen: Shape) -> str:
    if not seen["to"]:
        return f"{directory} lives at {seen['place']}"
    text = f"{directory} moves from {seen['place']} to {seen['to']}"
    if seen["keys"]:
        are, ends = ("is", "Its lease") if seen["keys"] == 1 else ("are", "The last lease")
        text += f" once it is idle: {counted(seen['keys'], 'name')} {are} in use"
        text += f". {ends} ends in {seen['ends_in']:.0f} s unless renewed"
    if seen["phase"] == "draining":
        text += ". New acquires are refused"
    if seen["until"]:
        text += f", and leases that remain are revoked at {seen['until']}"
    return text
