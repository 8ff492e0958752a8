"""`/v1/locks` and `/v1/locks/base64:{dir}/`: what is held, in a directory and below it."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from starlette.responses import Response

from dibs.core.names import MAX_NAME
from dibs.model import Inspect, Status
from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import SEEING, SIGNED_IN, Operation
from dibs.server.api.schemas import ListQuery, LockPage
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.reach import Found, heads_of, page_json, read
from dibs.server.routes.telling import lock_shown
from dibs.stores.http.names import MARK, decoded, encoded

USUAL = 100
"""Locks on a page, unless `limit` says otherwise."""


async def listing(call: Call) -> Response:
    """A page of what is held and may be seen."""
    asked = call.query(ListQuery)
    limit = asked.limit or USUAL
    most = call.service.limits.max_page
    if limit > most:
        raise ApiProblem("malformed", f"`limit` must be at most {most}: get more pages with `from`")
    kind = b"" if asked.kind == "all" else asked.kind.encode() + b":"
    heads = heads_of(None if asked.kind == "all" else asked.kind)
    prefixes = [head + call.name for head in heads]
    start = None if asked.from_ is None else _start(asked.from_, kind)
    found = await _from(call, prefixes, start, limit)
    items = [each for each in found.items if each.holders]
    # a key that begins so, and ends in a zero, is the very next one after the last
    following = None if found.cursor is None else encoded(found.cursor[len(kind) :] + b"\0")
    return await page_json("locks", items, partial(lock_shown, call), _Rest(following))


class _Rest(Struct, frozen=True):
    next: str | None


async def _from(call: Call, prefixes: Sequence[bytes], start: bytes | None, limit: int) -> Found:
    """The page that begins at `start`."""
    who, service = call.principal, call.service
    if start is None:
        return await read(service, who, prefixes, None, limit)
    if start.endswith(b"\0"):
        return await read(service, who, prefixes, start[:-1], limit)
    first: list[Status] = []
    if start.startswith(tuple(prefixes)) and who.may(Scope.READ, start.partition(b":")[2]):
        reply = (await service.leases.ask(who, Inspect(start))).reply
        first = [reply] if isinstance(reply, Status) else []
    if len(first) == limit:
        return Found(first, start)
    found = await read(service, who, prefixes, start, limit - len(first))
    return Found([*first, *found.items], found.cursor)


def _start(text: str, kind: bytes) -> bytes:
    """The key where a page begins: in one list of every kind, the page before has named it whole."""
    try:
        name = decoded(text.removeprefix(MARK))
    except ValueError:
        raise ApiProblem("malformed", "`from` must be `next` of the previous page") from None
    if not 1 <= len(name) <= MAX_NAME + 16:
        raise ApiProblem("malformed", "`from` is longer than a name can be")
    return kind + name


_ANSWERS = {200: LockPage}

ROUTES = (
    Operation(
        method="GET",
        path="/v1/locks",
        needs=SIGNED_IN,
        handler=listing,
        summary="All locks that are held, and that this API key has permission to read",
        query=ListQuery,
        answers=_ANSWERS,
    ),
    Operation(
        method="GET",
        path="/v1/locks/",
        needs=SIGNED_IN,
        handler=listing,
        summary="Locks that are held: the same as /v1/locks",
        query=ListQuery,
        answers=_ANSWERS,
    ),
    Operation(
        method="GET",
        path="/v1/locks/{dir}/",
        needs=SEEING,
        handler=listing,
        summary="Locks that are held in a directory and below it",
        query=ListQuery,
        answers=_ANSWERS,
    ),
)
