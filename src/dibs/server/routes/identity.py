"""`/v1/token` and `/identity/token`: a key against a token that lives for a minute."""

from msgspec import Struct
from starlette.responses import Response

from dibs.server.api.problems import Problem
from dibs.server.api.responses import json_response, text_response
from dibs.server.api.routing import SIGNED_IN, Operation
from dibs.server.auth.credentials import PREFIX
from dibs.server.call import Call

MAX_BODY = 4096
"""Bytes of a body that means nothing."""


class TokenShape(Struct, frozen=True):
    """A token. `tenant` is the id of the key that it is bound to, `subdomain` its name."""

    token: str
    tenant: str
    subdomain: str


async def token(call: Call) -> Response:
    """Exchange a key for a token: as text, or as JSON where that is asked for."""
    await call.body(MAX_BODY)
    if b" " + PREFIX.encode() not in call.headers.get(b"authorization", b""):
        raise Problem("forbidden", "a token cannot be exchanged for another: send the API key")
    issued = call.service.keys.token(call.principal)
    if "application/json" in call.header(b"accept"):
        return json_response(TokenShape(issued, call.principal.key_id, call.principal.name))
    return text_response(issued)


ROUTES = tuple(
    Operation(
        method="POST",
        path=path,
        needs=SIGNED_IN,
        handler=token,
        summary="Exchange a key for a token that is good for about a minute",
        ignores_body=True,
        answers={200: TokenShape},
        problems=(403,),
        also_text=True,
    )
    for path in ("/v1/token", "/identity/token")
)
