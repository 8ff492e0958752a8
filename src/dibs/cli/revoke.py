"""`dibs revoke`: end another holder's lease."""

import click

from dibs.cli import options
from dibs.cli.exits import FREE
from dibs.cli.naming import find
from dibs.cli.options import KINDS, Kind
from dibs.cli.voice import Voice
from dibs.cli.wording import counted, holders, kind_of, shown, span
from dibs.model import Status


@click.command(epilog=options.examples("dibs revoke nightly --reason 'host is broken'"))
@click.argument("name", type=options.Name())
@click.option("--reason", required=True, metavar="TEXT", help="The reason; the holder gets it.")
@click.option(
    "--now",
    "at_once",
    is_flag=True,
    help="Free NAME at once. This gives up exclusion: the holder may still be running.",
)
@options.kind
@options.store
@options.as_json
def revoke(
    name: bytes, reason: str, at_once: bool, kind: Kind | None, url: str | None, as_json: bool
) -> int:
    """End the lease of another holder of NAME.

    The holder cannot renew any more. NAME is free when the lease runs out, or at once with --now.

    Exit codes: 0 revoked, 1 NAME was not held.
    """
    with options.open_to_look(url) as client:
        status = find(client, name, kind)
        found = next(each for each in KINDS if each == kind_of(status.key))
        count = client.revoke(name, reason=reason, now=at_once, kind=found)
    ends_in = 0.0 if at_once else max((hold.expires_in for hold in status.holders), default=0.0)
    is_known = at_once or status.holding <= len(status.holders)
    if at_once and count:
        Voice(as_json).say("warning", _danger(status))
    if as_json:
        from dibs.cli.output import emit, name_shape

        emit(
            name_shape(status.key)
            | {"revoked": count, "ends_in": round(ends_in, 3) if is_known else None}
        )
    else:
        print(_told(status, count, ends_in if is_known else None))
    return 0 if count else FREE


def _danger(status: Status) -> str:
    return (
        f"{shown(status.key)} was {holders(status)}. A holder may still be running together with the "
        "next one. Only a resource that checks fencing tokens is protected now"
    )


def _told(status: Status, count: int, ends_in: float | None) -> str:
    name = shown(status.key)
    if not count:
        return f"{name} is not held"
    leases = counted(count, "lease")
    if ends_in is None:
        return f"revoked {leases} of {name}: free when the last of them ends"
    until = f"free within {span(ends_in)}; if its holder is dead, --now frees it at once"
    return f"revoked {leases} of {name}: {until if ends_in else 'free now'}"
