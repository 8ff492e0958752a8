"""`dibs show` and `dibs watch`: who holds one name, now and from now on."""

import shutil
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import click

from dibs.cli import options
from dibs.cli.exits import FREE, needing
from dibs.cli.options import KINDS, Kind, base64_name, decode, find, written
from dibs.cli.output import Messages, emit, fitting, kind_of, printable, shown, span
from dibs.cli.statuses import holding, last_end, state, status_shape
from dibs.errors import BackendUnavailable
from dibs.model import MANY, Holder, Status, Waiter
from dibs.stores.http.names import MARK, encoded

if TYPE_CHECKING:
    from dibs.sync import Client


@click.command(
    epilog=options.examples("dibs show nightly", "dibs show nightly --json | jq .holders[0].owner")
)
@click.argument("name", type=options.Name())
@base64_name
@decode
@options.kind
@options.store
@options.as_json
def show(
    name: bytes,
    is_decoded: bool | None,
    kind: Kind | None,
    as_json: bool,
) -> int:
    """Show who holds NAME and who waits for it.

    Exit codes: 0 held, 1 free.
    """
    with options.open_to_look() as client:
        status = find(client, name, kind)
    if as_json:
        emit(status_shape(status, decode=is_decoded is not False))
    else:
        print("\n".join(_lines(status, is_decoded)))
    return 0 if status.holders else FREE


def _lines(status: Status, is_decoded: bool | None = None) -> list[str]:
    name = written(status.key, is_decoded)
    capacity = f", capacity {status.capacity}" if 1 < status.capacity < MANY else ""
    lines = [f"{kind_of(status.key)} {name}{capacity}: {'held' if status.holders else 'free'}"]
    lines += [_holder_line(holder, status.capacity) for holder in status.holders]
    unlisted = status.holding - len(status.holders)
    lines += [f"  and {unlisted:,} more holding"] if unlisted > 0 else []
    lines += [_waiter_line(place, waiter) for place, waiter in enumerate(status.waiters, start=1)]
    unnamed = status.waiting - len(status.waiters)
    return [*lines, f"  and {unnamed:,} more waiting"] if unnamed > 0 else lines


def _holder_line(holder: Holder, capacity: int) -> str:
    what = ""
    if holder.slots and (capacity > 1 or holder.slots != (0,)):
        plural = "s" if len(holder.slots) > 1 else ""
        what = f", slot{plural} {','.join(map(str, holder.slots))}"
    if holder.units >= MANY:
        what = ", writing"
    ends = "free" if holder.state == "retained" else "expires"
    return f"  {holding(holder)}, token {holder.token}{what}, {ends} in {span(holder.expires_in)}"


def _waiter_line(place: int, waiter: Waiter) -> str:
    note = f" ({printable(waiter.note)})" if waiter.note else ""
    units = f", wants {waiter.units}" if 1 < waiter.units < MANY - 1 else ""
    if waiter.units >= MANY - 1:  # one less is an upgrade
        units = ", wants to write"
    owner = printable(waiter.owner)
    return f"  {place}. in the queue: {owner}{note}, for {span(waiter.waited)}{units}"


REDRAWN = 0.5
"""Seconds between two drawings of the line on a terminal."""


class StatusSource(Protocol):
    """Source of the statuses that `watch` shows."""

    def take(self, timeout: float) -> Status | None:
        """Return the next status, or None after `timeout` seconds."""


@click.command(epilog=options.examples("dibs watch nightly", "dibs watch nightly --json"))
@click.argument("name", type=options.Name())
@options.kind
@options.every
@options.store
@options.as_json
def watch(name: bytes, kind: Kind | None, every: float, as_json: bool) -> int:
    """Follow who holds NAME and who waits for it, until you press Ctrl-C.

    On a terminal the output is one line that changes; elsewhere it is one line per change, or one object
    with --json. A service (https://) reports every change. Other stores are polled, so a short hold can be
    missed.
    """
    messages = Messages(as_json)
    with options.open_client() as client:
        first = find(client, name, kind)
        source = _source(client, first, every, messages)
        if sys.stdout.isatty() and not as_json:
            _draw(first, source)
        else:
            _print_changes(first, source, as_json=as_json)
    return 0


def _source(client: "Client", first: Status, every: float, messages: Messages) -> StatusSource:
    full = options.full_url()
    if options.is_service(full):
        return _StreamedStatus(full, first.key, messages)
    return _PolledStatus(client, first, every, messages)


class _StreamedStatus:
    """Gets the status from a service, each time that it changes."""

    def __init__(self, url: str, key: bytes, messages: Messages) -> None:
        with needing("http"):
            from dibs.cli.service import Tail
        kind, _, name = key.partition(b":")
        self._tail = Tail(url, f"/watch/locks/{MARK}{encoded(name)}?kind={kind.decode()}")
        self._messages = messages

    def take(self, timeout: float) -> Status | None:
        from dibs.cli.service import read_status, report_connection

        event = self._tail.take(timeout)
        if event is None:
            return None
        report_connection(event, self._messages)
        return read_status(event.data) if event.kind == "status" else None


class _PolledStatus:
    """Polls a store."""

    def __init__(self, client: "Client", first: Status, every: float, messages: Messages) -> None:
        self._client = client
        self._name = first.name
        self._kind = next(each for each in KINDS if each == kind_of(first.key))
        self._every = every
        self._messages = messages
        self._at = time.monotonic() + every
        self._is_away = False

    def take(self, timeout: float) -> Status | None:
        left = self._at - time.monotonic()
        time.sleep(max(min(left, timeout), 0.0))
        if left > timeout:
            return None
        self._at = time.monotonic() + self._every
        try:
            status = self._client.status(self._name, self._kind)
        except BackendUnavailable as error:
            if not self._is_away:
                self._messages.show("warning", f"{error}; still trying")
            self._is_away = True
            return None
        if self._is_away:
            self._messages.show("back", f"{self._client.url} answers again")
        self._is_away = False
        return status


def _print_changes(status: Status, source: StatusSource, *, as_json: bool) -> None:
    """Print a line for each change."""
    last: object = None
    while True:
        if _gist(status) != last:
            last = _gist(status)
            if as_json:
                emit(status_shape(status))
            else:
                print(f"{time.strftime('%H:%M:%S')}  {line(status)}", flush=True)
        status = source.take(3600.0) or status


def _gist(status: Status) -> object:
    """The part of a status that changes only with an event."""
    held = [(each.lease, each.token, each.units, each.state) for each in status.holders]
    return held, status.holding, status.waiting, [each.lease for each in status.waiters]


def _draw(status: Status, source: StatusSource) -> None:
    """Redraw one line, with its times counted on."""
    seen = time.monotonic()
    try:
        while True:
            text = line(_aged(status, time.monotonic() - seen))
            text = fitting(text, shutil.get_terminal_size().columns)
            print(f"\r\x1b[K{text}", end="", flush=True)
            found = source.take(REDRAWN)
            if found is not None:
                status, seen = found, time.monotonic()
    finally:
        print()


def _aged(status: Status, seconds: float) -> Status:
    """The same status some seconds later, if nothing happened."""
    aged = [
        replace(
            each, held_for=each.held_for + seconds, expires_in=max(each.expires_in - seconds, 0.0)
        )
        for each in status.holders
    ]
    return replace(status, holders=tuple(aged))


def line(status: Status) -> str:
    """A status in a line."""
    text = f"{kind_of(status.key)} {shown(status.key)}: {state(status)}"
    if status.holders:
        text += f", expires in {last_end(status)}"
    waiting = max(status.waiting, len(status.waiters))
    return f"{text}; {waiting} waiting" if waiting else text
