"""`dibs keys …`: who may use the lock service, and for what."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dibs.cli import options
from dibs.cli.drawing import draws
from dibs.cli.exits import FREE
from dibs.cli.keys_unseen import take_back
from dibs.cli.needing import needing
from dibs.cli.output import Shape
from dibs.cli.streams import needs_stdout
from dibs.cli.voice import Voice
from dibs.cli.wording import printable

if TYPE_CHECKING:
    from dibs.cli.keys_office import Office

type Row = tuple[str, ...]

_HEAD: Row = ("ID", "NAME", "SCOPES", "DIRECTORIES", "MADE", "GOOD UNTIL")

_TIMES = ("MADE", "GOOD UNTIL")

_WIDE, _DATE = 120, len("2030-01-31")
"""On a terminal of fewer columns times stand in two lines, so that there is room for words."""

_GIVING = """It is shown this once: nobody can find it out again, only revoke it.
Give it to its client as DIBS_API_KEY, or in a file (mode 600) that DIBS_API_KEY_FILE names."""

_NOBODY_LEFT = """this was the last key of an administrator of everything.
To make another, beside the service's records:
  dibs keys create --name admin --scope admin --records URL"""


@click.group()
def keys() -> None:
    """Give out API keys of the lock service, and take them back.

    Where the service's records are, keys are kept there directly, by the settings of `dibs serve`
    or with --records. Anywhere else say --server https://…, or set DIBS_URL to it, with an
    administrator's key in DIBS_API_KEY.
    """


def _office_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        options.as_json,
        click.option("--config", metavar="FILE", help="The settings of `dibs serve`."),
        click.option(
            "--store", metavar="URL", help="The service's store, which has the records, too."
        ),
        click.option("--records", metavar="URL", help="Where the service's records are."),
        click.option(
            "--server",
            "--url",
            "server",
            metavar="URL",
            help="A running service, to be asked instead. Without: DIBS_URL, if that is one and "
            "nothing says where the records are.",
        ),
    ):
        command = option(command)
    return command


def _office(voice: Voice, **where: str | None) -> "Office":
    with needing("http"):
        from dibs.cli.keys_office import office
    return office(voice=voice, **where)


@keys.command()
@click.option("--name", required=True, metavar="TEXT", help="Whose it is, such as ci-deploy.")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE",
    help="What it is good for: read, acquire, force (end others' leases), admin. May be repeated.",
)
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    metavar="DIR",
    help="Only in this directory, such as shop/ (base64:… for one of any bytes). May be repeated. "
    "Without it the key is good for everything.",
)
@click.option("--expires-in", metavar="TIME", help="Good for so long, such as 12h or 90d.")
@_office_options
def create(
    name: str,
    scopes: tuple[str, ...],
    prefixes: tuple[str, ...],
    expires_in: str | None,
    as_json: bool,
    **where: str | None,
) -> int:
    """Make a key. It is printed this once, alone on stdout."""
    needs_stdout("nobody would ever see the key")
    with needing("http"):
        from dibs.cli.keys_wanted import slashes_added, wanted
    asked = wanted(name, scopes, prefixes, expires_in)
    voice = Voice(as_json)
    office = _office(voice, **where)
    made = office.create(asked) | {"url": office.place}
    try:
        _hand_over(made, as_json=as_json)
    except OSError:
        take_back(office, made["id"], voice)
        raise
    for given, directory in slashes_added(prefixes):
        voice.say("note", f"--prefix {given} is the directory {directory}: the slash was added")
    if not as_json:
        told = f"key {made['id']} ({made['name']}), made in {office.place}: {_good_for(made)}"
        voice.say("made", f"{told}\n{_GIVING}")
    return 0


@keys.command(name="list")
@click.option("--all", "ended", is_flag=True, help="Also keys that ended in the last 30 days.")
@options.no_header
@_office_options
def listing(
    ended: bool,
    headless: bool,
    as_json: bool,
    **where: str | None,
) -> int:
    """List the keys that there are, without what their owners bring."""
    office = _office(Voice(as_json), **where)
    found = office.list(ended=ended)
    if as_json:
        from dibs.cli.output import emit

        for key in found:
            emit(key)
    elif draws():
        _draw(found, office.place, headless=headless)
    else:
        rows = map(_row, found)
        for row in rows if headless else (_HEAD, *rows):
            print("\t".join(row))
    return 0


@keys.command()
@click.argument("key", metavar="ID|NAME")
@_office_options
def revoke(
    key: str,
    as_json: bool,
    **where: str | None,
) -> int:
    """End a key on all servers, within two seconds.

    What it has leased stays leased until that runs out. Exits with 1 if there is no such key.
    """
    voice = Voice(as_json)
    office = _office(voice, **where)
    known = office.list(ended=True)
    key_id = _id_of(key, known)
    gone = office.revoke(key_id) if key_id else None
    if gone is None:
        told = f"there is no key {key} in {office.place}: see `dibs keys list`"
        voice.say("error", told, exit_code=FREE)
        return FREE
    if _administrators(known) == [key_id]:
        voice.say("warning", _NOBODY_LEFT)
    if as_json:
        from dibs.cli.output import emit

        emit(gone)
    else:
        print(f"revoked {gone['id']} ({printable(gone['name'])}): of no use in 2 s at the latest")
    return 0


def _id_of(key: str, known: list[Shape]) -> str | None:
    """The key of that id, or else of that name, if it is only one."""
    if any(each["id"] == key for each in known):
        return key
    named = [each["id"] for each in known if each["name"] == key and each["good"]]
    if len(named) > 1:
        raise click.UsageError(f"{len(named)} keys are called {key}: say which, {', '.join(named)}")
    return named[0] if named else None


def _administrators(known: list[Shape]) -> list[str]:
    """The keys that may do everything everywhere."""
    return [
        each["id"]
        for each in known
        if each["good"] and "admin" in each["scopes"] and not each["prefixes"]
    ]


def _hand_over(made: Shape, *, as_json: bool) -> None:
    """Show the key. Raises `OSError` if it can't be, for all that is known here."""
    if not as_json:
        print(made["key"], flush=True)
        return
    from dibs.cli.output import emit

    emit(made)


def _good_for(key: Shape) -> str:
    where = ", ".join(key["prefixes"]) or "everything"
    until = f", until {key['expires_at']}" if key["expires_at"] else ""
    return f"{', '.join(key['scopes'])} in {where}{until}"


def _row(key: Shape) -> Row:
    end = f"revoked {key['revoked_at']}" if key["revoked_at"] else key["expires_at"] or ""
    if key["expires_at"] and not key["good"] and not key["revoked_at"]:
        end = f"expired {end}"
    where = ", ".join(key["prefixes"]) or "(everything)"
    scopes = ",".join(key["scopes"])
    return tuple(map(printable, (key["id"], key["name"], scopes, where, key["created_at"], end)))


def _draw(found: list[Shape], place: str, *, headless: bool) -> None:
    """A table, for eyes: where it is narrow, cells are broken between words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False, show_header=not headless)
    for title in _HEAD:
        date = _DATE if title in _TIMES and console.width < _WIDE else None
        table.add_column(Text(title), overflow="fold", no_wrap=title == "ID", max_width=date)
    for key in found:
        key_id, name, scopes, where, made, end = _row(key)
        times = (each.replace("T", " ") for each in (made, end))
        table.add_row(*map(Text, (key_id, name, scopes.replace(",", ", "), where, *times)))
    console.print(table if table.row_count else Text(f"There are no keys in {place}."))
