"""`/v1/keys`: keys are made, listed and revoked by administrators, of everything or of a directory."""

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from dibs.server.api.problems import ApiProblem, forbidden
from dibs.server.api.responses import json_response
from dibs.server.api.routing import Operation, somewhere
from dibs.server.auth.api_key import KeyList, KeyMade, KeyShown, NewKey, key_shown
from dibs.server.auth.keys import KeyAdmin, KeyRefused, UnknownKey
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.routes.shapes import Nothing, Strict

MAX_BODY = 64 << 10

_ADMIN = somewhere(Scope.ADMIN)

type KeyId = Annotated[str, Meta(max_length=64)]


class ListQuery(Strict, frozen=True):
    """Which keys."""

    ended: bool = False
    """Also those that were revoked or have expired lately."""


async def create(call: Call) -> Response:
    """Make a key; the answer is the only one that tells it."""
    call.query(Nothing)
    new: NewKey = call.decoded(await call.body(MAX_BODY), NewKey)
    try:
        async with call.service.accounts.changing.turn(call.principal.key_id):
            made = await _admin(call).create(call.principal, new)
    except ValueError as error:
        raise ApiProblem("malformed", str(error)) from None
    except KeyRefused as refusal:
        raise _refused(refusal) from None
    return json_response(made, 201, (b"location", f"/v1/keys/{made.id}".encode()))


async def listing(call: Call) -> Response:
    """All keys that the caller may see."""
    asked, now = call.query(ListQuery), call.service.keys.now()
    keys = await _admin(call).list(call.principal)
    told = (key_shown(key, now) for key in keys if asked.ended or not key.ended(now))
    return json_response(KeyList(tuple(told)))


async def revoke(call: Call) -> Response:
    """End a key, and with it its tokens and streams."""
    call.query(Nothing)
    try:
        async with call.service.accounts.changing.turn(call.principal.key_id):
            key = await _admin(call).revoke(call.principal, call.params["word"])
    except UnknownKey:
        raise ApiProblem("no-such-key", "no API key has this id, or you may not see it") from None
    return json_response(key_shown(key, call.service.keys.now()))


def _admin(call: Call) -> KeyAdmin:
    return KeyAdmin(call.service.keys, call.service.audit)


def _refused(refusal: KeyRefused) -> ApiProblem:
    if refusal.prefix:
        return forbidden(Scope.ADMIN, refusal.prefix)
    return ApiProblem("limit" if refusal.kind == "limit" else "forbidden", str(refusal))


ROUTES = (
    Operation(
        method="GET",
        path="/v1/keys",
        needs=_ADMIN,
        handler=listing,
        summary="Keys, as far as they are the caller's to see",
        query=ListQuery,
        answers={200: KeyList},
    ),
    Operation(
        method="POST",
        path="/v1/keys",
        needs=_ADMIN,
        handler=create,
        summary="Create an API key; it is returned only once",
        query=Nothing,
        body=NewKey,
        answers={201: KeyMade},
    ),
    Operation(
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
