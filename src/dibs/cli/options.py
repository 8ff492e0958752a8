"""Options that several verbs have."""

import os
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dibs.sync import Client

type Kind = Literal["lock", "semaphore", "rwlock", "tasklock", "leader"]

KINDS: tuple[Kind, ...] = get_args(Kind.__value__)

store = click.option(
    "--url",
    metavar="URL",
    help="The store, such as sqlite:////srv/leases.db. Else DIBS_URL, else url in the file that "
    "DIBS_CONFIG names, else this user's own store.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
kind = click.option(
    "--kind", type=click.Choice(KINDS), help="What the name belongs to, where several have it."
)

every = click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look, where the store has to be looked at.",
)

no_header = click.option(
    "--no-header",
    "--no-heading",
    "--no-headers",
    "headless",
    is_flag=True,
    help="No line that names the columns.",
)

SCHEMES = frozenset(
    {
        *("memory", "sqlite", "redis", "rediss", "valkey", "valkeys"),
        *("postgres", "postgresql", "postgresql+psycopg", "temporal"),
    }
)
"""What the URLs of stores begin with, but for the service's: those of pages name many a lock."""


class Prefix(click.ParamType[bytes]):
    """What names begin with, as bytes."""

    name = "prefix"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """The very bytes of the argument."""
        raw = value if isinstance(value, bytes) else os.fsencode(value)
        if _is_url(raw):
            self.fail("that is a store's URL: give it with --url", param, ctx)
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
        """The very bytes of the argument."""
        raw = super().convert(value, param, ctx)
        if not 1 <= len(raw) <= self.longest:
            self.fail(f"a name is 1 to 512 bytes long, and this one is {len(raw)}", param, ctx)
        return raw


class Spelt(Name):
    """A name, perhaps in base64: see `naming.bytes_of`."""

    longest = 1024


def _is_url(raw: bytes) -> bool:
    scheme, mark, _ = raw.partition(b"://")
    return bool(mark) and scheme.lower().decode("ascii", "replace") in SCHEMES


def store_asked() -> str | None:
    """The name of a store, given before the verb; None for none."""
    name: str | None = click.get_current_context().find_root().obj
    return name


def open_client(url: str | None) -> "Client":
    """The client of `--url`, of `--store`, else of the settings, else of this user's own store."""
    import logging

    from dibs import sync

    # What the library logs, we tell ourselves.
    logging.getLogger("dibs").addHandler(logging.NullHandler())
    name = store_asked()
    if url and name:
        raise click.UsageError("--url and --store: choose one")
    try:
        client = sync.Client.named(name) if name else sync.connect(url or None)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    if client.url.startswith("memory:"):
        raise click.UsageError(
            "a memory:// store ends with this command, so it excludes nobody: "
            "use sqlite:////absolute/path.db"
        )
    return client


def full_url(url: str | None) -> str:
    """The URL of the store that `open_client` opens, with its password."""
    from dibs.settings_stores import configured_store

    with open_client(url) as client:  # it says what is wrong with a store
        if url:
            return url
        found = configured_store(store_asked())
        return client.url if found is None else found.url


def is_service(url: str) -> bool:
    """Whether that is the lock service's URL, which tells of what happens by itself."""
    return url.partition(":")[0].lower() in ("http", "https")
