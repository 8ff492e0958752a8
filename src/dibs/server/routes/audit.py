"""`/v1/audit`: who did what of consequence."""

from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from dibs.server.api.responses import json_response
from dibs.server.api.routing import Operation, somewhere
from dibs.server.audit import Page
from dibs.server.auth.policy import Scope
from dibs.server.call import Call
from dibs.server.records.port import MAX_PAGE
from dibs.server.routes.shapes import Strict


class AuditQuery(Strict, frozen=True):
    """Where a page begins, and how long it is."""

    before: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | None = None
    """`next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


async def page(call: Call) -> Response:
    """The newest lines; of a directory's administrator, those about that."""
    asked = call.query(AuditQuery)
    return json_response(await call.service.audit.page(call.principal, asked.before, asked.limit))


ROUTES = (
    Operation(
        method="GET",
        path="/v1/audit",
        needs=somewhere(Scope.ADMIN),
        handler=page,
        summary="The audit log, newest first; a page can be empty and not the last",
        query=AuditQuery,
        answers={200: Page},
    ),
)
