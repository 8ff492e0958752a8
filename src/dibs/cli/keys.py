"""`dibs keys …`: who may use the lock service, and for what."""

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from dibs.cli import options
from dibs.cli.exits import FREE, needing
from dibs.cli.output import Messages, Row, Shape, emit, needs_stdout, print_table, printable
from dibs.errors import DibsError

if TYPE_CHECKING:
    from dibs.cli.keys_access import KeyAccess

_HEAD: Row = ("ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES")

_TIMES = ("CREATED", "EXPIRES")

_WIDE, _DATE = 120, len("2030-01-31")
"""On a terminal with fewer columns, times take two lines."""

_GIVING = """It is shown only once; it can be revoked later.
Set DIBS_API_KEY to it in the client, or DIBS_API_KEY_FILE to a file (mode 600) that contains it."""

_NOBODY_LEFT = """this was the last API key that administers everything.
To create another, run where the service's records are:
  dibs keys create --name admin --scope admin --records URL"""


@click.group(
    epilog=options.examples(
        "dibs keys create --name ci --scope acquire --prefix shop/",
        "dibs keys list --server https://locks.example.com",
    )
)
def keys() -> None:
    """Create, list and revoke API keys of the lock service.

    On the service's own machine the keys are read and written in its records: by the settings of `dibs
    serve`, or with --records. Elsewhere give --server https://… or DIBS_URL, and an administrator's
    key in DIBS_API_KEY.
    """


def _access_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        options.as_json,
        options.store_name,
        click.option("--config", metavar="FILE", help="The settings of `dibs serve`."),
        click.option(
            "--leases", metavar="URL", help="The service's leases, if its records are there too."
        ),
        click.option("--records", metavar="URL", help="The service's records."),
        click.option(
            "--server",
            "--url",
            "server",
            metavar="URL",
            callback=options.before_or_after,
            help="A running service to use instead. Default: DIBS_URL, if it is a service and no "
            "records are given.",
        ),
    ):
        command = option(command)
    return command


def _access(messages: Messages, **where: str | None) -> "KeyAccess":
    with needing("http"):
        from dibs.cli.keys_access import access
    return access(messages=messages, **where)


@keys.command(
    epilog=options.examples(
        "dibs keys create --name me --scope admin",
        "dibs keys create --name ci --scope acquire --prefix shop/ --expires-in 90d",
    )
)
@click.option("--name", required=True, metavar="TEXT", help="The key's name, such as ci-deploy.")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE",
    help="read, acquire, force (end others' leases) or admin. Can be repeated.",
)
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    metavar="DIR",
    help="Only this directory, such as shop/ (base64:… for any bytes). Can be repeated. "
    "Default: all names.",
)
@click.option("--expires-in", metavar="TIME", help="Lifetime, such as 12h or 90d [no limit].")
@_access_options
def create(
    name: str,
    scopes: tuple[str, ...],
    prefixes: tuple[str, ...],
    expires_in: str | None,
    as_json: bool,
    **where: str | None,
) -> int:
    """Create a key. It is printed once, alone on stdout."""
    needs_stdout("the key would be lost")
    with needing("http"):
        from dibs.cli.keys_access import slashes_added, wanted
    asked = wanted(name, scopes, prefixes, expires_in)
    messages = Messages(as_json)
    access = _access(messages, **where)
    made = access.create(asked) | {"url": access.place}
    try:
        _hand_over(made, as_json=as_json)
    except OSError:
        take_back(access, made["id"], messages)
        raise
    for given, directory in slashes_added(prefixes):
        messages.show("note", f"--prefix {given} means the directory {directory}")
    if not as_json:
        told = f"created key {made['id']} ({made['name']}) in {access.place}: {_good_for(made)}"
        messages.show("made", f"{told}\n{_GIVING}")
    return 0


@keys.command(name="list", epilog=options.examples("dibs keys list --all"))
@click.option(
    "--all",
    "ended",
    is_flag=True,
    help="Also keys that were revoked or expired in the last 30 days.",
)
@options.no_header
@_access_options
def listing(
    ended: bool,
    headless: bool,
    as_json: bool,
    **where: str | None,
) -> int:
    """List keys, without their secrets."""
    access = _access(Messages(as_json), **where)
    found = access.list(ended=ended)
    if as_json:
        for key in found:
            emit(key)
    else:
        is_narrow = shutil.get_terminal_size().columns < _WIDE
        dates = {title: {"max_width": _DATE} for title in _TIMES if is_narrow}
        print_table(
            _HEAD,
            map(_row, found),
            headless=headless,
            empty=f"No keys in {access.place}.",
            columns={"ID": {"no_wrap": True}, **dates},
        )
    return 0


@keys.command(epilog=options.examples("dibs keys revoke ci"))
@click.argument("key", metavar="ID|NAME")
@_access_options
def revoke(
    key: str,
    as_json: bool,
    **where: str | None,
) -> int:
    """Revoke a key on all servers, within two seconds.

    Its leases last until they run out. Exits with 1 if there is no such key.
    """
    messages = Messages(as_json)
    access = _access(messages, **where)
    known = access.list(ended=True)
    key_id = _id_of(key, known)
    gone = access.revoke(key_id) if key_id else None
    if gone is None:
        told = f"no key {key} in {access.place}: see `dibs keys list`"
        messages.show("error", told, exit_code=FREE)
        return FREE
    if _administrators(known) == [key_id]:
        messages.show("warning", _NOBODY_LEFT)
    if as_json:
        emit(gone)
    else:
        print(f"revoked {gone['id']} ({printable(gone['name'])}): stops working within 2 s")
    return 0


@keys.command(
    "rotate-secret",
    epilog=options.examples("dibs keys rotate-secret --config /etc/dibs/server.toml"),
)
@click.option("--config", metavar="FILE", help="The settings of `dibs serve`.")
@click.option("--records", metavar="URL", help="Where the service's records are.")
def rotate_secret(config: str | None, records: str | None) -> int:
    """Replace the secret that signs tokens and sessions.

    Run it beside the service's records, or where DIBS_SERVER_SECRET_FILE is. Servers that share the file
    use the new secret at once. They accept the old one for the lifetime of a token, about a minute; then
    whoever signed in at the dashboard before has to sign in again. API keys stay as they are.
    """
    with needing("server"):
        from dibs.cli.keys_local import rotate
    path = rotate(records, config)
    print(f"Replaced the secret in {path}")
    return 0


def take_back(access: "KeyAccess", key_id: str, messages: Messages) -> None:
    """Revoke the key, or warn that it still works."""
    try:
        access.revoke(key_id)
    except DibsError as error:
        told = f"it was not printed but still works: end it with `dibs keys revoke {key_id}`"
        messages.show("warning", f"key {key_id}: {told} ({error})")
    else:
        messages.show("warning", f"key {key_id}: nobody has seen it, so it was revoked")


def _id_of(key: str, known: list[Shape]) -> str | None:
    """The key with this id, or the only key with this name."""
    if any(each["id"] == key for each in known):
        return key
    named = [each["id"] for each in known if each["name"] == key and each["good"]]
    if len(named) > 1:
        raise click.UsageError(
            f"{len(named)} keys are called {key}: give one id of {', '.join(named)}"
        )
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
    scopes, made = ",".join(key["scopes"]), key["created_at"]
    if sys.stdout.isatty():  # where the words of a cell may need several lines
        scopes = scopes.replace(",", ", ")
        made, end = made.replace("T", " "), end.replace("T", " ")
    return tuple(map(printable, (key["id"], key["name"], scopes, where, made, end)))
