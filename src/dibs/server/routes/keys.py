"""`/v1/keys`: keys are made, listed and revoked by administrators, of everything or of a directory."""

from typing import Annotated

from msgspec import Meta

from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.keys import UnknownKey
from dibs.server.keys_desk import Beyond, Desk, NotYours, TooMany
from dibs.server.keys_shapes import KeyList, KeyMade, KeyShown, NewKey, shown
from dibs.server.principal import Scope
from dibs.server.problems import Problem, forbidden
from dibs.server.routes.shapes import Nothing, Strict
from dibs.server.routing import Route, somewhere

MAX_BODY = 64 << 10

_ADMIN = somewhere(Scope.ADMIN)

type KeyId = Annotated[str, Meta(max_length=64)]


class ListQuery(Strict, frozen=True):
    """Which keys."""

    ended: bool = False
    """Also those that were revoked or have expired lately."""


async def create(call: Call) -> Answer:
    """Make a key; the answer is the only one that tells it."""
    call.query(Nothing)
    new: NewKey = call.decoded(await call.body(MAX_BODY), NewKey)
    try:
        async with call.service.accounts.changing.turn(call.principal.key_id):
            made = await _desk(call).create(call.principal, new)
    except ValueError as error:
        raise Problem("malformed", str(error)) from None
    except TooMany as error:
        raise Problem("limit", str(error)) from None
    except NotYours:
        raise Problem(
            "forbidden", "only an administrator of everything may give out the scope admin"
        ) from None
    except Beyond as error:
        raise _beyond(error.prefix) from None
    return json(made, 201, (b"location", f"/v1/keys/{made.id}".encode()))


async def listing(call: Call) -> Answer:
    """All keys that the caller may see."""
    asked, now = call.query(ListQuery), call.service.keys.now()
    keys = await _desk(call).list(call.principal)
    told = (shown(key, now) for key in keys if asked.ended or not key.ended(now))
    return json(KeyList(tuple(told)))


async def revoke(call: Call) -> Answer:
    """End a key, and with it its tokens and streams."""
    call.query(Nothing)
    try:
        async with call.service.accounts.changing.turn(call.principal.key_id):
            key = await _desk(call).revoke(call.principal, call.params["word"])
    except UnknownKey:
        raise Problem("no-such-key", "no API key has this id, or you may not see it") from None
    return json(shown(key, call.service.keys.now()))


def _desk(call: Call) -> Desk:
    return Desk(call.service.keys, call.service.audit)


def _beyond(prefix: bytes) -> Problem:
    if prefix:
        return forbidden(Scope.ADMIN, prefix)
    return Problem(
        "forbidden", "this API key administers only some directories: give prefixes within them"
    )


ROUTES = (
    Route(
        method="GET",
        path="/v1/keys",
        needs=_ADMIN,
        handler=listing,
        summary="Keys, as far as they are the caller's to see",
        query=ListQuery,
        answers={200: KeyList},
    ),
    Route(
        method="POST",
        path="/v1/keys",
        needs=_ADMIN,
        handler=create,
        summary="Create an API key; it is returned only once",
        query=Nothing,
        body=NewKey,
        answers={201: KeyMade},
    ),
    Route(
        method="DELETE",
        path="/v1/keys/{word}",
        needs=_ADMIN,
        handler=revoke,
        summary="Revoke an API key; it stops working within two seconds",
        query=Nothing,
        answers={200: KeyShown},
        problems=(404,),
    ),
)
