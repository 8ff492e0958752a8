"""One request, as a handler sees it that is a function: with the whole service. See `api.routing.route`."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.requests import Request
from starlette.types import ASGIApp

from dibs.server.api.parameters import decode_body, read_body, read_query
from dibs.server.api.routing import Caller, Handler, Operation, path_arguments

if TYPE_CHECKING:
    from dibs.server.service import Service


class Call(Caller):
    """A request: who asks, for what, with which parameters."""

    __slots__ = ("_query", "name", "params", "route", "service")

    def __init__(self, service: "Service", request: Request, route: Operation) -> None:
        super().__init__(request)
        self.service = service
        self.route = route
        self.params = path_arguments(request.path_params)
        """What the path names."""
        self.name: bytes = self.params.get("name") or self.params.get("directory", b"")
        """The resource that the path names, or the directory, with its slash; empty for the root."""
        self._query: Any = None

    def key(self, kind: str) -> bytes:
        """The key of the resource of that kind which the path names."""
        return b"%b:%b" % (kind.encode(), self.name)

    def query[T: Struct](self, kind: type[T]) -> T:
        """The parameters. Raises `ApiProblem`, 400, for what `kind` has not, has otherwise, or twice."""
        found = self._query
        if type(found) is kind:
            return found
        lease_id = self.headers.get(b"dibs-lease-id")
        self._query = found = read_query(self.request.scope["query_string"], kind, lease_id)
        return found

    async def body(self, most: int) -> bytes:
        """All of the body. Raises `ApiProblem`, 413, if it is longer than that."""
        return await self.service.bodies.read(self, most)

    def decoded[T](self, body: bytes, kind: "type[T] | Any") -> Any:
        """A body of JSON. Raises `ApiProblem`, 400, for what is no JSON or is otherwise than `kind`."""
        return decode_body(body, kind)


_ABSENT = {"directory": b"", "word": ""}
"""What a method gets that is served at several paths, where its path does not name it."""


def handler_of(operation: Operation, part: object) -> Handler:
    """A function of a `Call` for a method of `part`: it gives the method the arguments that it takes."""
    method, query = operation.handler, operation.query
    arguments = operation.arguments
    in_path = [each for each in arguments if each not in ("query", "body")]
    takes_query, takes_body = "query" in arguments, "body" in arguments

    async def handle(call: Call) -> ASGIApp:
        given = {each: call.params.get(each, _ABSENT.get(each)) for each in in_path}
        if query is not None:
            found = call.query(query)
            if takes_query:
                given["query"] = found
        if takes_body:
            given["body"] = await read_body(operation, call, call.service.bodies)
        return await method(part, call, **given)

    return handle
