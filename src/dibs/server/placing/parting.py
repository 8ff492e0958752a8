"""How directories get a home of their own, at the place where they live already.

A directory without one moves with that around it, which is another record: whoever has both move by what he
read a while ago would have names at two places. So to part is written into the record of the home that is
lived in, by compare-and-set, before the directory's own: it succeeds only if that home has not begun to move,
and whoever read before it can't have that home begin.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import batched

from msgspec import structs

from dibs.server.placing.documents import HOME, Documents, read_all, write
from dibs.server.placing.home import Home
from dibs.server.records.port import Conflict, Records

MOST = 100
"""So many part at a time: their names have to fit into a record."""


async def part(records: Records, found: Documents, directories: Sequence[bytes]) -> None:
    """Give these a home of their own, at the place where it is. They live in one home.

    Inner ones first: they would live in that of an outer one else. Raises `Conflict`.
    """
    for some in batched(sorted(directories, reverse=True), MOST):
        owner = found.lives_in(some[0])
        home = found.home_of(owner)
        unwritten = (each for each in home.parted if not found.is_written(each))
        parted = structs.replace(home, parted=(*unwritten, *some))
        await put_home(records, found, owner, parted)
        found.homes.update(dict.fromkeys(some, home.of_parted))
        await write_out(records, found, owner)


async def write_out(records: Records, found: Documents, directory: bytes) -> None:
    """Write the records of those that have parted from one, as a move forgets them. Raises `Conflict`."""
    home = found.home_of(directory)
    for each in home.parted:
        if not found.is_written(each):
            await put_home(records, found, each, home.of_parted)


async def put_home(records: Records, found: Documents, directory: bytes, home: Home) -> None:
    """Write a home, and know it. Raises `Conflict`."""
    version = found.versions.get((HOME, directory), 0)
    await write(records, HOME, directory, home, version)
    found.versions[HOME, directory] = version + 1
    found.homes[directory] = home


async def outdate(records: Records, directory: bytes) -> None:
    """Have nobody begin a move by what was said of a directory, and of those within, before this.

    Each home that may begin, and has to know, gets another version: a mover that read before fails, one that
    reads later has read what is said now, and a home that moves already is seen to do so.
    """
    done: set[bytes] = set()
    while True:
        found = await read_all(records)
        within = (each for each in found.homes if each.startswith(directory))
        todo = {found.lives_in(directory), *within} - done
        if not todo or found.listing.is_lone:
            return
        for each in sorted(todo):
            home = found.home_of(each)
            with suppress(Conflict):  # then it is looked at again
                if home.phase == "settled":
                    await put_home(records, found, each, home)
                done.add(each)
