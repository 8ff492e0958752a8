"""`dibs move`: moves a directory's locks to another store once nobody uses them."""

import time

import click

from dibs.cli import options
from dibs.cli.directories import in_base64, segment, server, service
from dibs.cli.exits import needing
from dibs.cli.output import Shape
from dibs.cli.voice import Voice
from dibs.cli.wording import counted

_LOOKS_EVERY = 1.0


@click.command(
    epilog=options.examples(
        "dibs move shop/               show where it lives", "dibs move shop/ --to eu --wait"
    )
)
@click.argument("directory", metavar="DIR")
@click.option("--to", "place", metavar="PLACEMENT", help="Placement, by its name in the settings.")
@click.option("--wait", is_flag=True, help="Wait until it has moved, and report what it waits for.")
@in_base64
@server
@options.as_json
def move(
    directory: str,
    place: str | None,
    wait: bool,
    is_base64: bool,
    server: str | None,
    as_json: bool,
) -> int:
    """Move the locks of a directory to another placement; without --to, show where it lives.

    `/` is everything that has no placement of its own. The directory moves once nobody holds, or waits for,
    any lock in it. The service stores the request, so you can stop this command before the move.
    """
    with needing("http"):
        remote, path = service(server), f"/v1/move{segment(directory, is_base64=is_base64)}"
        if place is not None:
            remote.ask("PUT", path, {"to": place})
        seen: Shape = remote.ask("GET", path)
        voice, last = Voice(as_json), ""
        while wait and seen["to"]:
            told = _told(directory, seen)
            if told != last:
                voice.say("moving", told)
            last = told
            time.sleep(_LOOKS_EVERY)
            seen = remote.ask("GET", path)
    if as_json:
        from dibs.cli.output import emit

        emit({"directory": directory} | seen)
    else:
        print(_told(directory, seen))
    return 0


def _told(directory: str, seen: Shape) -> str:
    if not seen["to"]:
        return f"{directory} lives at {seen['place']}"
    told = f"{directory} moves from {seen['place']} to {seen['to']}"
    if not seen["keys"]:
        return told
    are, ends = ("is", "Its lease") if seen["keys"] == 1 else ("are", "The last lease")
    told += f" once it is idle: {counted(seen['keys'], 'name')} {are} in use"
    return f"{told}. {ends} ends in {seen['ends_in']:.0f} s unless renewed"
