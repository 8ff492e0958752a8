"""Options that several verbs have."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote_to_bytes

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dibs.sync import Client

type Kind = Literal["lock", "semaphore", "rwlock", "tasklock", "leader"]

KINDS: tuple[Kind, ...] = get_args(Kind.__value__)


def examples(*lines: str) -> str:
    """An epilog for `--help`; each line is one command, printed as it stands."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def before_or_after(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of `--url` or `--store`, which may stand before the verb or after it."""
    name = "url" if "--url" in param.opts else "store"
    if value is not None and ctx.meta.setdefault(name, value) != value:
        raise click.UsageError(f"--{name} is given twice, with different values")
    found: str | None = ctx.meta.get(name)
    return found


store_name = click.option(
    "--store",
    metavar="NAME",
    expose_value=False,
    callback=before_or_after,
    help="A store by its name in the settings: DIBS_STORES__<NAME>__URL, or [stores.<name>] in "
    "the file that DIBS_CONFIG names.",
)


def store_url[F: Callable[..., Any]](*, expose_value: bool = True) -> Callable[[F], F]:
    """The option `--url`."""
    return click.option(
        "--url",
        metavar="URL",
        expose_value=expose_value,
        callback=before_or_after,
        help="The store, such as redis://cache or sqlite:////srv/leases.db. Default: DIBS_URL, "
        "or `url` in the file that DIBS_CONFIG names, or ~/.local/state/dibs/leases.db.",
    )


def store[F: Callable[..., Any]](command: F) -> F:
    """The options `--url` and `--store`."""
    return store_url()(store_name(command))


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
kind = click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="Only resources of this kind.",
)

every = click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to poll a store that has no event stream.",
)

no_header = click.option(
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
        return raw

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """Names that are in use."""
        from click.shell_completion import CompletionItem

        from dibs.cli.completion import names_in_use

        return [CompletionItem(name) for name in names_in_use(ctx, incomplete)]


class Name(Prefix):
    """A name as bytes: what the shell gave us, UTF-8 or not."""

    name = "name"
    longest = 512

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """The bytes of the argument."""
        raw = super().convert(value, param, ctx)
        if not 1 <= len(raw) <= self.longest:
            self.fail(f"a name must be 1 to 512 bytes long; this one is {len(raw)}", param, ctx)
        return raw


class Spelt(Name):
    """A name, perhaps in base64: see `naming.bytes_of`."""

    longest = 1024


def _is_url(raw: bytes) -> bool:
    scheme, mark, _ = raw.partition(b"://")
    return bool(mark) and scheme.lower().decode("ascii", "replace") in SCHEMES


def store_asked() -> str | None:
    """The name given with `--store`."""
    name: str | None = click.get_current_context().meta.get("store")
    return name


def open_client(url: str | None) -> "Client":
    """The client for `--url`, for `--store`, or for the settings."""
    import logging

    from dibs import sync

    # The verbs print what matters, so the library's log is dropped.
    logging.getLogger("dibs").addHandler(logging.NullHandler())
    name = store_asked()
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


def open_to_look(url: str | None) -> "Client":
    """The same client; an empty store instead of a file that is not there: looking must not make it."""
    from dibs import sync

    client = open_client(url)
    return sync.connect("memory://") if missing_file(client) else client


def full_url(url: str | None) -> str:
    """The URL of the store that `open_client` opens, with its password."""
    from dibs.settings import configured_store

    with open_client(url) as client:  # it says what is wrong with a store
        if url:
            return url
        found = configured_store(store_asked())
        return client.url if found is None else found.url


def is_service(url: str) -> bool:
    """Whether that is the lock service's URL, which tells of what happens by itself."""
    return url.partition(":")[0].lower() in ("http", "https")
