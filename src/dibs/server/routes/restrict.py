"""`/v1/restrict`: with which regions and providers a directory's locks may live."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from starlette.responses import Response

from dibs.server.api.problems import ApiProblem
from dibs.server.api.responses import json_response
from dibs.server.api.routing import SEEING, SIGNED_IN, Operation, on_path
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.placing.desk import Restricted
from dibs.server.placing.rules import Rule
from dibs.server.routes.placing import desk_of, refusals
from dibs.server.routes.seaplane_compat import done
from dibs.server.routes.shapes import Done, Nothing, Strict
from dibs.stores.http.names import MARK, decoded, encoded

API = "Locks"
MAX_BODY = 64 << 10
PAGE = 100


class PageQuery(Strict, frozen=True):
    """Where a page begins: the `next_key` of the one before, and its `next_api`."""

    from_: Annotated[str, Meta(max_length=1024)] | None = field(name="from", default=None)
    from_api: Annotated[str, Meta(max_length=64)] | None = None


class RestrictionShown(Struct, frozen=True):
    """A restriction."""

    api: str
    directory: str
    """Its bytes in URL-safe base64, without the slash at its end."""
    details: Rule
    state: Literal["Pending", "Enforced"]
    """Pending until nothing is left at a place where it may not be."""
    placement: str
    """Where the directory lives."""


class RestrictionPage(Struct, frozen=True):
    """Some restrictions, and where to go on: null after the last."""

    restrictions: tuple[RestrictionShown, ...]
    next_api: str | None
    next_key: str | None


async def get(call: Call) -> Response:
    """One restriction."""
    call.query(Nothing)
    if not call.allowed or not _is_ours(call):
        raise _none_there()
    with refusals(_none_there()):
        return json_response(_shown(await desk_of(call).restriction(call.name)))


async def put(call: Call) -> Response:
    """Set one."""
    call.query(Nothing)
    _check_api(call)
    rule: Rule = call.decoded(await call.body(MAX_BODY), Rule)
    try:
        with refusals():
            async with call.service.accounts.changing.turn(call.principal.key_id):
                await desk_of(call).restrict(call.principal, call.name, rule)
    except ValueError as error:
        raise ApiProblem("malformed", str(error)) from None
    return done(call, "Ok")


async def delete(call: Call) -> Response:
    """Delete one."""
    call.query(Nothing)
    _check_api(call)
    with refusals(_none_there()):
        async with call.service.accounts.changing.turn(call.principal.key_id):
            await desk_of(call).unrestrict(call.principal, call.name)
    return done(call, "Ok")


async def listing(call: Call) -> Response:
    """A page of those that may be seen."""
    asked = call.query(PageQuery)
    if "word" in call.params:
        _check_api(call)
    elif (asked.from_ is None) != (asked.from_api is None):
        raise ApiProblem("malformed", "give both `from` and `from_api`, or neither")
    start = b"" if asked.from_ is None else _start(asked.from_)
    all_of_them = await desk_of(call).restrictions()
    seen = [
        each
        for each in all_of_them
        if each.directory >= start and call.principal.may(Scope.READ, each.directory)
    ]
    following = seen[PAGE].directory if len(seen) > PAGE else None
    return json_response(
        RestrictionPage(
            tuple(map(_shown, seen[:PAGE])),
            None if following is None else API,
            None if following is None else encoded(following[:-1]),
        )
    )


def _check_api(call: Call) -> None:
    """Raises `ApiProblem` for what is not there to be restricted."""
    if not _is_ours(call):
        word = call.params["word"]
        told = f"only {API} can be restricted: write {API.lower()} instead of {word!r}"
        raise ApiProblem("malformed", told)


def _is_ours(call: Call) -> bool:
    api: str = call.params["word"]
    return api.lower() == API.lower()


def _start(text: str) -> bytes:
    try:
        return decoded(text.removeprefix(MARK)) + b"/"
    except ValueError:
        raise ApiProblem("malformed", "`from` must be `next_key` of the previous page") from None


def _none_there() -> ApiProblem:
    return ApiProblem("no-such-restriction", "this directory has no restriction")


def _shown(found: Restricted) -> RestrictionShown:
    directory = encoded(found.directory[:-1])
    return RestrictionShown(API, directory, found.rule, found.state, found.place)


_ONE = "/v1/restrict/{word}/{dir}/"
_LISTED = {200: RestrictionPage}

ROUTES = (
    Operation(
        method="GET",
        path=_ONE,
        needs=SEEING,
        handler=get,
        summary="A directory's restriction, and whether it is enforced",
        query=Nothing,
        answers={200: RestrictionShown},
        problems=(404,),
    ),
    Operation(
        method="PUT",
        path=_ONE,
        needs=on_path(Scope.ADMIN),
        handler=put,
        summary="Restrict a directory to regions and providers",
        query=Nothing,
        body=Rule,
        answers={200: Done},
        problems=(409, 413),
    ),
    Operation(
        method="DELETE",
        path=_ONE,
        needs=on_path(Scope.ADMIN),
        handler=delete,
        summary="Delete a restriction; what lives somewhere stays there",
        query=Nothing,
        answers={200: Done},
        problems=(404, 409),
    ),
    *(
        Operation(
            method="GET",
            path=path,
            needs=SIGNED_IN,
            handler=listing,
            summary="Restrictions that this API key has permission to read",
            query=PageQuery,
            answers=_LISTED,
        )
        for path in ("/v1/restrict", "/v1/restrict/", "/v1/restrict/{word}", "/v1/restrict/{word}/")
    ),
)
