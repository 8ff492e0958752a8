"""`dibs events`: follow grants, releases and losses."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import Kind
from dibs.cli.output import Messages, emit, kind_of, name_shape, printable, shown, span
from dibs.errors import BackendUnavailable
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import LockEvent

if TYPE_CHECKING:
    from dibs.sync import Client

_COLOURS = {
    "granted": "green",
    "queued": "yellow",
    "expired": "red",
    "revoked": "magenta",
    "freed": "magenta",
}


@click.command(epilog=options.examples("dibs events orders/", "dibs events --renewals --json"))
@click.argument("prefix", type=options.Prefix(), default=b"", metavar="[PREFIX]")
@options.kind
@click.option("--renewals", is_flag=True, help="Also print renewals.")
@options.every
@options.store
@options.as_json
def events(
    prefix: bytes,
    kind: Kind | None,
    renewals: bool,
    every: float,
    url: str | None,
    as_json: bool,
) -> int:
    """Print what happens to locks, until you press Ctrl-C.

    With PREFIX, only names that begin with it. A service (https://) reports every event. Other stores are
    polled. A short hold can be missed, and `events` infers from the time whether it was released or expired.
    """
    messages = Messages(as_json)
    for event in _found(prefix, kind, renewals, every, url, messages):
        if event.what == "renewed" and not renewals:
            continue
        if as_json:
            _emit(event)
        else:
            click.echo(line(event))
    return 0


def _found(
    prefix: bytes,
    kind: Kind | None,
    renewals: bool,
    every: float,
    url: str | None,
    messages: Messages,
) -> Iterator[LockEvent]:
    full = options.full_url(url)
    if options.is_service(full):
        with needing("http"):
            from dibs.cli.service import followed
        return followed(full, prefix, kind, renewals, messages)

    return polled(options.open_client(url), prefix, kind, every, messages)


def _emit(event: LockEvent) -> None:
    from dibs.server.lock_events import event_json

    told = {
        name: value for name, value in event_json(event).items() if name not in ("kind", "name")
    }
    emit(name_shape(event.key) | told)


def line(event: LockEvent) -> str:
    """An event, as people read it."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = click.style(f"{event.what:<8}", fg=_COLOURS.get(event.what))
    said = [f"{clock}  {what}  {kind_of(event.key)} {shown(event.key)}"]
    owner, note = printable(event.owner), printable(event.note)
    if owner or note:
        said.append(f"{owner} ({note})".strip() if note else owner)
    if event.token:
        said.append(f"token {event.token}")
    if len(event.slots) > 1 or event.slots not in ((), (0,)):
        said.append(f"slots {','.join(map(str, event.slots))}")
    if event.waited:
        said.append(f"after {span(event.waited)} in the queue")
    if event.held_for is not None and event.what != "renewed":
        said.append(f"held for {span(event.held_for)}")
    if event.reason:
        said.append(printable(event.reason))
    return ", ".join(said)


def polled(
    client: "Client", prefix: bytes, kind: Kind | None, every: float, messages: Messages
) -> Iterator[LockEvent]:
    """Yield events without end. Raises `BackendUnavailable` if not even the first look succeeds."""
    told: list[LockEvent] = []
    keys = KeyStates(told.append, time.monotonic, time.time)
    has_looked, is_away = False, False
    while True:
        begun, scan = time.monotonic(), keys.begin_scan()
        try:
            for status in client.list(prefix, kind):
                keys.observe(status, begun, scan=scan)
            keys.end_scan(scan, begun)
            has_looked = True
            if is_away:
                messages.show("back", f"{client.url} answers again")
            is_away = False
        except BackendUnavailable as error:
            if not has_looked:
                raise
            if not is_away:
                messages.show("warning", f"{error}; still trying")
            is_away = True
        yield from told
        told.clear()
        time.sleep(every)
