"""`dibs events`: follow grants, releases and losses."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import Kind
from dibs.cli.output import Messages, emit, kind_of, name_shape, printable, shown, span
from dibs.errors import BackendUnavailable
from dibs.server.key_changes import KeyStates
from dibs.server.lock_events import LockEvent, event_json, read_event
from dibs.stores.http.names import MARK, encoded

if TYPE_CHECKING:
    from dibs.sync import Client

_NAMES = ("kind", "name")

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
    as_json: bool,
) -> int:
    """Print what happens to locks, until you press Ctrl-C.

    With PREFIX, only names that begin with it. A service (https://) reports every event. Other stores are
    polled. A short hold can be missed, and `events` infers from the time whether it was released or expired.
    """
    messages = Messages(as_json)
    for event in _found(prefix, kind, renewals, every, messages):
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
    messages: Messages,
) -> Iterator[LockEvent]:
    full = options.full_url()
    if options.is_service(full):
        return _streamed(full, prefix, kind, renewals, messages)
    return polled(options.open_client(), prefix, kind, every, messages)


def _emit(event: LockEvent) -> None:
    fields = event_json(event).items()
    emit(name_shape(event.key) | {name: value for name, value in fields if name not in _NAMES})


def line(event: LockEvent) -> str:
    """An event, as people read it."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    what = click.style(f"{event.what:<8}", fg=_COLOURS.get(event.what))
    parts = [f"{clock}  {what}  {kind_of(event.key)} {shown(event.key)}"]
    owner, note = printable(event.owner), printable(event.note)
    if owner or note:
        parts.append(f"{owner} ({note})".strip() if note else owner)
    if event.token:
        parts.append(f"token {event.token}")
    if len(event.slots) > 1 or event.slots not in ((), (0,)):
        parts.append(f"slots {','.join(map(str, event.slots))}")
    if event.waited:
        parts.append(f"after {span(event.waited)} in the queue")
    if event.held_for is not None and event.what != "renewed":
        parts.append(f"held for {span(event.held_for)}")
    if event.reason:
        parts.append(printable(event.reason))
    return ", ".join(parts)


def _streamed(
    url: str, prefix: bytes, kind: Kind | None, renewals: bool, messages: Messages
) -> Iterator[LockEvent]:
    """Yield a service's events without end. Raises the error that ends the stream for good."""
    with needing("http"):
        from dibs.cli.service import Tail, report_connection
    asked = {"prefix": MARK + encoded(prefix)} if prefix else {}
    asked |= {"kind": kind} if kind else {}
    asked |= {"renewals": "true"} if renewals else {}
    with closing(Tail(url, "/events" + (f"?{urlencode(asked)}" if asked else ""))) as tail:
        for event in tail:
            if event.kind == "message":
                yield read_event(event.data)
            elif event.kind == "reset":
                messages.show("warning", "some events were missed")
            else:
                report_connection(event, messages)


def polled(
    client: "Client", prefix: bytes, kind: Kind | None, every: float, messages: Messages
) -> Iterator[LockEvent]:
    """Yield events without end. Raises `BackendUnavailable` if not even the first look succeeds."""
    found: list[LockEvent] = []
    keys = KeyStates(found.append, time.monotonic, time.time)
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
        yield from found
        found.clear()
        time.sleep(every)
