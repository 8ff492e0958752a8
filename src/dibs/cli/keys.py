"""`dibs keys …`: who may use the lock service, and for what."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.exits import FREE, needing
from dibs.cli.output import Messages, Shape, TableRow, emit, needs_stdout, print_table, printable
from dibs.config import seconds
from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.stores.http.names import MARK, decoded

if TYPE_CHECKING:
    from dibs.cli.keys_local import LocalKeys

    type KeyAccess = RemoteKeys | LocalKeys

_HEAD: TableRow = ("ID", "NAME", "SCOPES", "DIRECTORIES", "CREATED", "EXPIRES")

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
        click.option("--config", metavar="FILE", help="The settings of `dibs serve`."),
        click.option(
            "--leases", metavar="URL", help="The service's leases, if its records are there too."
        ),
        click.option("--records", metavar="URL", help="The service's records."),
        options.server,
    ):
        command = option(command)
    return command


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
    asked = wanted(name, scopes, prefixes, expires_in)
    messages = Messages(as_json)
    access = access_by(messages, **where)
    namesakes = [each["id"] for each in access.list(ended=False) if each["name"] == name]
    made = access.create(asked) | {"url": access.place}
    try:
        if as_json:
            emit(made)
        else:
            print(made["key"], flush=True)
    except OSError:
        take_back(access, made["id"], messages)
        raise
    for given, directory in slashes_added(prefixes):
        messages.show("note", f"--prefix {given} means the directory {directory}")
    if namesakes:
        ids = ", ".join(namesakes)
        messages.show("note", f"other keys have this name: {ids}. Revoke them by their ids")
    if not as_json:
        text = f"created key {made['id']} ({made['name']}) in {access.place}: {_good_for(made)}"
        messages.show("made", f"{text}\n{_GIVING}")
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
    messages = Messages(as_json)
    access = access_by(messages, **where)
    found = access.list(ended=ended)
    if not found:
        hint = (
            "if `dibs serve` was started with --records, --leases or --config, give the same here"
        )
        messages.show("note", f"no keys in {access.place}: {hint}")
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
            empty="",
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
    access = access_by(messages, **where)
    known = access.list(ended=True)
    key_id = _id_of(key, known)
    gone = access.revoke(key_id) if key_id else None
    if gone is None:
        text = f"no key {key} in {access.place}: see `dibs keys list`"
        messages.show("error", text, exit_code=FREE)
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
    use the new secret at once. They accept the old one for the lifetime of a token, about a minute. Then
    all dashboard users must sign in again. API keys stay as they are.
    """
    with needing("server"):
        from dibs.cli.keys_local import rotate
    path = rotate(records, config)
    print(f"Replaced the secret in {path}")
    return 0


def access_by(
    messages: Messages,
    *,
    records: str | None,
    leases: str | None,
    config: str | None,
) -> "KeyAccess":
    """Access to the keys, by the options or else by the settings.

    Raises `UsageError` for options that contradict each other.
    """
    server, beside = options.url_asked(), bool(records or leases or config)
    if server is not None and beside:
        raise click.UsageError("give either --server, or --records, --leases and --config")
    name = options.store_asked()
    if name is not None and server is not None:
        raise click.UsageError("give either --server or --store, not both")
    if server is not None:
        return RemoteKeys(server)
    if name is not None and beside:
        raise click.UsageError(f"give either --store {name}, or --records, --leases and --config")
    if not beside and (service := options.service_meant()) is not None:
        return RemoteKeys(service.url, service.place)
    with needing("server"):
        from dibs.cli.keys_local import local_keys
    found, is_named = local_keys(records, leases, config)
    if not is_named:
        messages.show(
            "warning",
            f"using the keys in {found.place}, the default of `dibs serve`: for others give "
            "--server https://… or --records URL",
        )
    return found


class RemoteKeys:
    """API keys of a running service. `named_by` is the setting that names it, if no option does.

    Keys are dicts with the fields of `dibs.server.auth.api_key`.
    """

    def __init__(self, url: str, named_by: str = "") -> None:
        with needing("http"):
            from dibs.cli.service import Remote
        self._remote = Remote(url)
        self._named_by = named_by

    @property
    def place(self) -> str:
        """The URL of the service, without a secret."""
        return self._remote.shown

    def create(self, wanted: Shape) -> Shape:
        """Create a key. The result has its text."""
        made: Shape = self._ask("POST", "", wanted)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        """The keys; with `ended` also those that expired or were revoked."""
        found: list[Shape] = self._ask("GET", "?ended=true" if ended else "")["keys"]
        return found

    def revoke(self, key_id: str) -> Shape | None:
        """End a key. None if there is none with this id."""
        gone: Shape | None = self._ask("DELETE", f"/{quote(key_id, safe='')}")
        return gone

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            return self._remote.ask(method, f"/v1/keys{path}", body)
        except (BackendUnavailable, Forbidden) as error:
            if self._named_by:  # on the service's machine, the user may have meant its records
                hint = "with access to its records, --records URL needs no service and no key"
                error.args = (f"{error}\n{self._named_by} names this service; {hint}",)
            raise


def wanted(
    name: str, scopes: Sequence[str], prefixes: Sequence[str], expires_in: str | None
) -> Shape:
    """The body of `POST /v1/keys`. Raises `UsageError`."""
    with needing("http"):
        from dibs.server.auth.api_key import MAX_LIFE, check_name
        from dibs.server.auth.policy import read_prefix, reduced, write_prefix
    try:
        check_name(name)
        shape: Shape = {
            "name": name,
            "scopes": sorted(_scopes(scopes)),
            "prefixes": [
                write_prefix(each) for each in reduced(map(read_prefix, prefixes)) if each
            ],
        }
        if expires_in is not None:
            shape["expires_in"] = lifetime = seconds(expires_in, "--expires-in")
            if not 1 <= lifetime <= MAX_LIFE:
                raise ValueError(f"--expires-in is {expires_in}: it must be 1 s to 100 years")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return shape


def _scopes(given: Sequence[str]) -> set[str]:
    """Scopes by their names. One text can have several, separated by commas.

    Raises `ValueError` for an unknown name, and if there is none at all.
    """
    from dibs.server.auth.policy import Scope

    words = {word.strip().lower() for text in given for word in text.split(",") if word.strip()}
    known = ", ".join(Scope)
    if not words:
        raise ValueError(f"a key needs a scope: {known}")
    for word in words - set(Scope):
        raise ValueError(f"{word!r} is no scope: there are {known}")
    return words


def slashes_added(prefixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Prefixes without a slash at their end, each with the directory that it stands for."""
    from dibs.server.auth.policy import read_prefix, write_prefix

    for each in prefixes:
        raw = decoded(each.removeprefix(MARK)) if each.startswith(MARK) else os.fsencode(each)
        if not raw.endswith(b"/"):
            yield each, write_prefix(read_prefix(each))


def take_back(access: "KeyAccess", key_id: str, messages: Messages) -> None:
    """Revoke the key, or warn that it still works."""
    try:
        access.revoke(key_id)
    except DibsError as error:
        text = f"it was not printed but still works: end it with `dibs keys revoke {key_id}`"
        messages.show("warning", f"key {key_id}: {text} ({error})")
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


def _good_for(key: Shape) -> str:
    where = ", ".join(key["prefixes"]) or "everything"
    until = f", until {key['expires_at']}" if key["expires_at"] else ""
    return f"{', '.join(key['scopes'])} in {where}{until}"


def _row(key: Shape) -> TableRow:
    end = f"revoked {key['revoked_at']}" if key["revoked_at"] else key["expires_at"] or ""
    if key["expires_at"] and not key["good"] and not key["revoked_at"]:
        end = f"expired {end}"
    where = ", ".join(key["prefixes"]) or "(everything)"
    scopes, made = ",".join(key["scopes"]), key["created_at"]
    if sys.stdout.isatty():  # where the words of a cell may need several lines
        scopes = scopes.replace(",", ", ")
        made, end = made.replace("T", " "), end.replace("T", " ")
    return tuple(map(printable, (key["id"], key["name"], scopes, where, made, end)))
