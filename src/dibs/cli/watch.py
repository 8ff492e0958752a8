"""`dibs watch`: follow one lock."""

import shutil
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.naming import find
from dibs.cli.options import KINDS, Kind
from dibs.cli.voice import Voice
from dibs.cli.wording import kind_of, last_end, shown, state
from dibs.errors import BackendUnavailable
from dibs.model import Status

if TYPE_CHECKING:
    from dibs.sync import Client

REDRAWN = 0.5
"""Seconds between two drawings of the line on a terminal."""


class Source(Protocol):
    """Where statuses come from."""

    def take(self, timeout: float) -> Status | None:
        """The next one, if one comes within so many seconds."""


@click.command(epilog=options.examples("dibs watch nightly", "dibs watch nightly --json"))
@click.argument("name", type=options.Name())
@options.kind
@options.every
@options.store
@options.as_json
def watch(name: bytes, kind: Kind | None, every: float, url: str | None, as_json: bool) -> int:
    """Follow who holds NAME and who waits for it, until you press Ctrl-C.

    On a terminal the output is one line that changes; elsewhere it is one line per change, or one object
    with --json. A service (https://) reports every change. Other stores are polled, so a short hold can be
    missed.
    """
    voice = Voice(as_json)
    with options.open_client(url) as client:
        first = find(client, name, kind)
        source = _source(client, first, every, url, voice)
        if sys.stdout.isatty() and not as_json:
            _draw(first, source)
        else:
            _tell(first, source, as_json=as_json)
    return 0


def _source(client: "Client", first: Status, every: float, url: str | None, voice: Voice) -> Source:
    full = options.full_url(url)
    if options.is_service(full):
        with needing("http"):
            from dibs.cli.following import Watch
        return Watch(full, first.key, voice)
    return _Looks(client, first, every, voice)


class _Looks:
    """Polls a store."""

    def __init__(self, client: "Client", first: Status, every: float, voice: Voice) -> None:
        self._client = client
        self._name = first.name
        self._kind = next(each for each in KINDS if each == kind_of(first.key))
        self._every = every
        self._voice = voice
        self._at = time.monotonic() + every

    def take(self, timeout: float) -> Status | None:
        left = self._at - time.monotonic()
        time.sleep(max(min(left, timeout), 0.0))
        if left > timeout:
            return None
        self._at = time.monotonic() + self._every
        try:
            return self._client.status(self._name, self._kind)
        except BackendUnavailable as error:
            self._voice.say("warning", f"{error}; still trying")
            return None


def _tell(status: Status, source: Source, *, as_json: bool) -> None:
    """A line for each change."""
    told: object = None
    while True:
        if _gist(status) != told:
            told = _gist(status)
            if as_json:
                from dibs.cli.output import emit, status_shape

                emit(status_shape(status))
            else:
                print(f"{time.strftime('%H:%M:%S')}  {line(status)}", flush=True)
        status = source.take(3600.0) or status


def _gist(status: Status) -> object:
    """What is not just time passing."""
    held = [(each.lease, each.token, each.units, each.state) for each in status.holders]
    return held, status.holding, status.waiting, [each.lease for each in status.waiters]


def _draw(status: Status, source: Source) -> None:
    """One line, with its times counted on."""
    seen = time.monotonic()
    try:
        while True:
            width = shutil.get_terminal_size().columns - 1
            text = line(_aged(status, time.monotonic() - seen))
            print(f"\r\x1b[K{text[:width]}", end="", flush=True)
            found = source.take(REDRAWN)
            if found is not None:
                status, seen = found, time.monotonic()
    finally:
        print()


def _aged(status: Status, seconds: float) -> Status:
    """What it is so much later, if nothing has happened."""
    aged = [
        replace(
            each, held_for=each.held_for + seconds, expires_in=max(each.expires_in - seconds, 0.0)
        )
        for each in status.holders
    ]
    return replace(status, holders=tuple(aged))


def line(status: Status) -> str:
    """A status in a line."""
    said = f"{kind_of(status.key)} {shown(status.key)}: {state(status)}"
    if status.holders:
        said += f", expires in {last_end(status)}"
    waiting = max(status.waiting, len(status.waiters))
    return f"{said}; {waiting} waiting" if waiting else said
