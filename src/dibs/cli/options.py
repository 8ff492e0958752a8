"""Options that several verbs have, the store that they name, and names of resources."""

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, get_args

import click

from dibs.cli.output import kind_of, shown
from dibs.core.names import Kind as Kind
from dibs.process import start_thread

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dibs.model import Status
    from dibs.settings import StoreSettings
    from dibs.sync import Client


class ClickDecorator(Protocol):
    """Adds an option or an argument to a command."""

    def __call__[C: Callable[..., Any] | click.Command](self, command: C, /) -> C: ...


KINDS: tuple[Kind, ...] = get_args(Kind.__value__)


def examples(*lines: str) -> str:
    """An epilog for `--help`; each line is one command, printed as it stands."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def before_or_after(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Note the value of `--url` or `--store`, which may stand before the verb or after it."""
    name = "store" if "--store" in param.opts else "url"
    if value is not None and ctx.meta.setdefault(name, value) != value:
        raise click.UsageError(f"--{name} is given twice, with different values")
    found: str | None = ctx.meta.get(name)
    return found


store_name: ClickDecorator = click.option(
    "--store",
    metavar="NAME",
    expose_value=False,
    callback=before_or_after,
    help="A store by its name in the settings: DIBS_STORES__<NAME>__URL, or [stores.<name>] in "
    "the file that DIBS_CONFIG names.",
)

store_url: ClickDecorator = click.option(
    "--url",
    metavar="URL",
    expose_value=False,
    callback=before_or_after,
    help="The store, such as redis://cache or sqlite:////srv/leases.db. Default: DIBS_URL, "
    "or `url` in the file that DIBS_CONFIG names, or ~/.local/state/dibs/leases.db.",
)

url_argument: ClickDecorator = click.argument(
    "given", metavar="[URL]", required=False, expose_value=False, callback=before_or_after
)
"""The same URL, for verbs about the store itself."""


def store[F: Callable[..., Any]](command: F) -> F:
    """The options `--url` and `--store`."""
    return store_url(store_name(command))


as_json: ClickDecorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line."
)
kind: ClickDecorator = click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Only resources of this kind.",
)

every: ClickDecorator = click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to poll a store that has no event stream.",
)

no_header: ClickDecorator = click.option(
    "--no-header",
    "--no-heading",
    "--no-headers",
    "headless",
    is_flag=True,
    help="Omit the line with the column names.",
)

SCHEMES = frozenset(
    {
        *("memory", "sqlite", "redis", "rediss", "valkey", "valkeys"),
        *("postgres", "postgresql", "postgresql+psycopg", "temporal"),
        *("etcd", "etcds", "kubernetes", "nats", "s3"),
    }
)
"""URL schemes of stores. Without https: a web page's URL can be a lock's name."""


def amounts[F: Callable[..., Any]](command: F) -> F:
    """The options that say what to take; `check_amounts` refuses what does not go together."""
    one_or_more = click.IntRange(1)
    for option in (
        click.option("--note", metavar="TEXT", help="A note, shown to waiters."),
        click.option(
            "--priority", type=int, metavar="P", help="Higher goes first in the queue [0]."
        ),
        click.option(
            "--units",
            type=one_or_more,
            default=1,
            metavar="N",
            help="Take N units of the capacity [1].",
        ),
        click.option(
            "--kind",
            type=click.Choice(("lock", "semaphore")),
            help="Kind of resource [semaphore if --capacity is above 1, else lock].",
        ),
        click.option(
            "--capacity",
            type=one_or_more,
            default=1,
            metavar="N",
            help="Allow N holders at a time [1].",
        ),
    ):
        command = option(command)
    return command


def check_amounts(wanted: Mapping[str, Any]) -> None:
    """Raises a usage error for amounts that contradict each other."""
    if wanted["units"] > wanted["capacity"]:
        raise click.UsageError("--units must not be more than --capacity")
    if wanted["kind"] == "lock" and wanted["capacity"] > 1:
        raise click.UsageError("a lock has one holder: leave out either --capacity or --kind lock")


def _note_base64(ctx: click.Context, param: click.Parameter, is_base64: bool) -> None:
    ctx.meta["base64"] = is_base64


base64_name: ClickDecorator = click.option(
    "-B",
    "--base64",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_note_base64,
    help="The name is given in URL-safe base64.",
)


def bytes_of(name: bytes) -> bytes:
    """The name that is meant: with -B it is given in base64."""
    if not click.get_current_context().meta.get("base64"):
        return name
    from dibs.stores.http.names import MARK, decoded

    try:
        return decoded(name.decode("ascii").removeprefix(MARK).rstrip("="))
    except ValueError:
        raise click.UsageError("-B: the name must be URL-safe base64") from None


class Prefix(click.ParamType[bytes]):
    """A prefix of names, as bytes."""

    name = "prefix"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """The bytes of the argument."""
        raw = value if isinstance(value, bytes) else os.fsencode(value)
        if _is_url(raw):
            self.fail("this is a store's URL: give it with --url", param, ctx)
        return bytes_of(raw)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """Names that are in use."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in names_in_use(ctx, incomplete)]


class Name(Prefix):
    """A name as bytes: what the shell gave us, UTF-8 or not."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """The bytes of the argument."""
        raw = super().convert(value, param, ctx)
        if not 1 <= len(raw) <= 512:
            self.fail(f"a name must be 1 to 512 bytes long; this one is {len(raw)}", param, ctx)
        return raw


def _is_url(raw: bytes) -> bool:
    scheme, mark, _ = raw.partition(b"://")
    return bool(mark) and scheme.lower().decode("ascii", "replace") in SCHEMES


def url_asked() -> str | None:
    """The URL given with `--url`, `--server` or as an argument."""
    url: str | None = click.get_current_context().meta.get("url")
    return url


def store_asked() -> str | None:
    """The name given with `--store`."""
    name: str | None = click.get_current_context().meta.get("store")
    return name


def open_client() -> "Client":
    """The client for `--url`, for `--store`, or for the settings."""
    import logging

    from dibs import sync

    # The verbs print what matters, so the library's log is dropped.
    logging.getLogger("dibs").addHandler(logging.NullHandler())
    url, name = url_asked(), store_asked()
    if url and name:
        raise click.UsageError("give either --url or --store, not both")
    if name and "://" in name:
        raise click.UsageError("--store takes a name in the settings: give a URL with --url")
    try:
        client = sync.Client.named(name) if name else sync.connect(url or None)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    if client.url.startswith("memory:"):
        raise click.UsageError(
            "a memory:// store only lives as long as this command: use sqlite:////absolute/path.db"
        )
    return client


def missing_file(client: "Client") -> str:
    """The path of a SQLite store that is not there yet; empty for any other store."""
    from pathlib import Path
    from urllib.parse import unquote_to_bytes

    location = client.url.partition("?")[0]
    if location.startswith("sqlite:///"):
        named = os.fsdecode(unquote_to_bytes(location.removeprefix("sqlite:///")))
        path = Path(named).expanduser() if named.startswith("~/") else Path(named)
        try:
            path.stat()
        except FileNotFoundError:
            return str(path.absolute())
        except OSError:
            pass  # the store explains it
    return ""


def open_to_look(*, quietly: bool = False) -> "Client":
    """The same client, but an empty store if the SQLite file does not exist: reading must not create it."""
    from dibs import sync
    from dibs.cli.output import Messages

    client = open_client()
    path = missing_file(client)
    if not path:
        return client
    if not quietly:
        as_json = getattr(click.get_current_context().obj, "as_json", False)
        warning = f"{path} does not exist, so nothing is held there: is it the path that you meant?"
        Messages(as_json).show("warning", warning)
    return sync.connect("memory://")


def full_url() -> str:
    """The URL of the store that `open_client` opens, with its password."""
    from dibs.settings import configured_store

    with open_client() as client:  # it says what is wrong with a store
        if url := url_asked():
            return url
        found = configured_store(store_asked())
        return client.url if found is None else found.url


def is_service(url: str) -> bool:
    """Whether that is the lock service's URL, which tells of what happens by itself."""
    return url.partition(":")[0].lower() in ("http", "https")


decode: ClickDecorator = click.option(
    "-D/ ",
    "--decode/--no-decode",
    "is_decoded",
    default=None,
    help="Print names as text, or in URL-safe base64.",
)


def written(key: bytes, is_decoded: bool | None) -> str:
    """A key's name as it is to be shown: as text, unless that is not wanted."""
    if is_decoded is False:
        from dibs.stores.http.names import encoded

        return encoded(key.partition(b":")[2])
    return shown(key)


def find(client: "Client", name: bytes, kind: Kind | None) -> "Status":
    """The status of what a name means: of that kind, or of the only kind that is in use.

    Raises a usage error where it is in use under several kinds.
    """
    if kind is not None:
        return client.status(name, kind)
    found = in_use(client, name, KINDS)
    if len(found) > 1:
        kinds = ", ".join(kind_of(status.key) for status in found)
        raise click.UsageError(
            f"several kinds of resource are called {shown(found[0].key)!r}: {kinds}. "
            "Choose one with --kind."
        )
    return found[0] if found else client.status(name)


def in_use(client: "Client", name: bytes, kinds: Iterable[Kind]) -> "list[Status]":
    """Statuses of the kinds under which the name is held or waited for."""
    statuses = [client.status(name, kind) for kind in kinds]
    return [status for status in statuses if status.holders or status.waiting or status.waiters]


COMPLETE = "_DIBS_COMPLETE"
"""The variable with which a shell asks for completions: see `dibs completion`."""

COMPLETION_WAIT = 0.3
"""Seconds that Tab waits for a store."""

MOST_NAMES = 200
"""Names offered at most."""


def names_in_use(ctx: click.Context, incomplete: str) -> list[str]:
    """Names that begin so, as far as the store tells them in time."""
    found: list[str] = []

    def look() -> None:
        try:
            with ctx.scope(cleanup=False), open_to_look(quietly=True) as client:
                statuses = client.list(os.fsencode(incomplete), ctx.params.get("kind"))
                found.extend(filter(None, map(_word, islice(statuses, MOST_NAMES))))
        except Exception:  # noqa: BLE001, S110 - then there is nothing to choose from
            pass

    start_thread(look, "dibs completion").wait(COMPLETION_WAIT)
    return list(dict.fromkeys(found))


def _word(status: "Status") -> str:
    """A name that a shell can put into a line as it is; empty for another."""
    name = status.key.partition(b":")[2].decode("utf-8", "replace")
    is_plain = name.isprintable() and "\ufffd" not in name and not set(name) & set(" '\"\\$`")
    return name if is_plain else ""


def server[F: Callable[..., Any]](command: F) -> F:
    """The options `--server` (alias `--url`) and `--store`."""
    option = click.option(
        "--server",
        "--url",
        "server",
        metavar="URL",
        expose_value=False,
        callback=before_or_after,
        help="The service, such as https://locks.example.com [DIBS_URL].",
    )
    return option(store_name(command))


_RECORDS_NAMED = tuple(f"DIBS_SERVER_{each}" for each in ("CONFIG", "RECORDS", "LEASES"))
"""Any of these says where the records are: here is a server of theirs."""


def service_meant() -> "StoreSettings | None":
    """The service that the settings name, unless they say where its records are."""
    if store_asked() is None and any(map(os.environ.get, _RECORDS_NAMED)):
        return None
    return configured_service()


def configured_service() -> "StoreSettings | None":
    """The service that the settings or `--store` name; None if there is none."""
    found = _configured()
    return found if found is not None and is_service(found.url) else None


def configured_store_url() -> str:
    """The store that the settings name (`DIBS_URL`, …) if it is no service; else empty."""
    found = _configured()
    return "" if found is None or is_service(found.url) else found.url


def _configured() -> "StoreSettings | None":
    """The store that the settings or `--store` name."""
    from dibs.settings import configured_store

    name = store_asked()
    if name is not None and "://" in name:
        raise click.UsageError("--store takes a name in the settings: give a URL with --leases")
    found = configured_store(name)
    if found is None and name is not None:
        raise click.UsageError(f"no store {name!r} in the settings")
    return found


def user_name() -> str:
    """The user who runs this; empty if the system knows none."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
