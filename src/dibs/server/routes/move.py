"""`/v1/placements` and `/v1/move`: the stores that there are, and moving a directory to one of them."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from dibs.server.api.responses import json_response
from dibs.server.api.routing import Operation, everywhere, on_path, somewhere
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.placing.desk import Progress
from dibs.server.routes.placing import desk_of, refusals
from dibs.server.routes.shapes import Done, Nothing
from dibs.server.routes.telling import DONE

MAX_BODY = 4096


class Destination(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to."""

    to: Annotated[str, Meta(min_length=1, max_length=256)]


class PlacementShown(Struct, frozen=True):
    """A store that directories may live in; the first one has what lives nowhere in particular."""

    name: str
    provider: str
    region: str


class PlacementList(Struct, frozen=True):
    """All of them."""

    placements: tuple[PlacementShown, ...]


async def placements(call: Call) -> Response:
    """The stores that there are."""
    call.query(Nothing)
    found = (PlacementShown(each.name, each.provider, each.region) for each in desk_of(call).places)
    return json_response(PlacementList(tuple(found)))


async def move(call: Call) -> Response:
    """Have it move; what is held goes on, and no lock is ever held twice."""
    call.query(Nothing)
    asked: Destination = call.decoded(await call.body(MAX_BODY), Destination)
    with refusals():
        await desk_of(call).move(call.principal, call.name, asked.to)
    return DONE


async def progress(call: Call) -> Response:
    """Where it lives, and what still stands at the place that it leaves."""
    call.query(Nothing)
    return json_response(await desk_of(call).progress(call.name))


ROUTES = (
    Operation(
        method="GET",
        path="/v1/placements",
        needs=somewhere(Scope.ADMIN),
        handler=placements,
        summary="The stores that directories may live in",
        query=Nothing,
        answers={200: PlacementList},
    ),
    *(
        Operation(
            method="PUT",
            path=path,
            needs=needs,
            handler=move,
            summary="Move a directory to another store",
            query=Nothing,
            body=Destination,
            answers={200: Done},
            problems=(409, 413),
        )
        for path, needs in (
            ("/v1/move", everywhere(Scope.ADMIN)),
            ("/v1/move/{dir}/", on_path(Scope.ADMIN)),
        )
    ),
    *(
        Operation(
            method="GET",
            path=path,
            needs=needs,
            handler=progress,
            summary="Where a directory lives, and how far its move is",
            query=Nothing,
            answers={200: Progress},
        )
        for path, needs in (
            ("/v1/move", everywhere(Scope.ADMIN)),
            ("/v1/move/{dir}/", on_path(Scope.ADMIN)),
        )
    ),
)
