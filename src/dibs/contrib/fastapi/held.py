"""The dependency: a lease that is held while a request is served."""

import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from starlette.requests import HTTPConnection

from dibs import AcquireTimeout, Client, Lease, Lock, NameTemplate, Semaphore
from dibs.contrib.fastapi.routes import dependants, openapi_responses, routes_of
from dibs.contrib.problems import check_status
from dibs.contrib.starlette import Lifespan, ProblemHandler, answer_with
from dibs.contrib.starlette import lifespan as client_lifespan


class Held:
    """A dependency that holds the lock, or the semaphore's units, that a template names.

    `Annotated[Lease, Depends(Held("order:{order_id}"))]`: the fields are parameters of the
    path, or such as the handler or another dependency declares, and are read as they are declared there,
    so that `/orders/7` and `/orders/007` are one order to a handler that takes an `int`.

    Contention: one try, or as `wait` says, then `AcquireTimeout`, which `problems()` answers with
    409, or with `status`. Expiry: renewed meanwhile; a lease that is lost cancels the handler, and
    raises `LeaseLost`. It is released when the dependency's scope ends: after the response has been
    sent, or, with `Depends(..., scope="function")`, before. With `capacity` it is a semaphore, of which
    `units` are taken. Other options are those of `Lock`.
    """

    def __init__(
        self,
        template: str,
        *,
        capacity: int | None = None,
        units: int = 1,
        status: int | None = None,
        client: Client | str | None = None,
        **options: Any,
    ) -> None:
        self.template: str = template
        self._name = NameTemplate(template)
        self._capacity, self._units, self._status = capacity, units, status
        if status is not None:
            check_status(status)
        self._client, self._options = client, {"wait": 0, **options}
        example = self._resource(template, client)  # raises for wrong options
        if not 1 <= units <= (capacity or 1):
            raise ValueError(f"units is {units}: {example!r} has 1 to {capacity or 1}")

    @property
    def status(self) -> int | None:
        """The status of a response to contention, if this dependency has one of its own."""
        return self._status

    def check(self, route: Any) -> None:
        """Raises `ValueError` for a field that no parameter of a route is for."""
        self._name.check(declared_by(route), f"the route {route.path}")

    async def __call__(self, connection: HTTPConnection) -> AsyncGenerator[Lease]:
        """Yield the lease until the scope ends. FastAPI calls this."""
        name = self._name.filled(values_of(self._name.fields, connection))
        client = self._client or getattr(connection.state, "dibs", None)
        resource = self._resource(name, client)
        try:
            lease = await resource.acquire(units=self._units)
        except AcquireTimeout:
            if self._status is not None:
                answer_with(connection, self._status)
            raise
        async with lease:
            yield lease

    def _resource(self, name: str | bytes, client: Client | str | None) -> Lock | Semaphore:
        if self._capacity is None:
            return Lock(name, client=client, **self._options)
        return Semaphore(name, self._capacity, client=client, **self._options)

    def __repr__(self) -> str:
        return f"Held({self.template!r})"


_SOURCES: Mapping[str, Callable[[HTTPConnection], Any]] = {
    "path_params": lambda connection: connection.path_params,
    "query_params": lambda connection: connection.query_params,
    "header_params": lambda connection: connection.headers,
    "cookie_params": lambda connection: connection.cookies,
}
"""Where a request has what FastAPI keeps under these names at a route."""


def declared_by(route: Any) -> list[str]:
    """The parameters that a name may be made of: those of the path, and those that are declared."""
    in_path = list(getattr(route, "param_convertors", ()))
    return list(dict.fromkeys([*in_path, *(field.name for _, field in _declared(route))]))


def values_of(names: Sequence[str], connection: HTTPConnection) -> Mapping[str, object]:
    """The values of these parameters in a request.

    Raises `RequestValidationError` for one that is missing or not what it is declared to be, which
    FastAPI answers with 422, and `LookupError` for one that the route knows nothing of.
    """
    if not names:
        return {}
    found: dict[str, object] = {}
    errors: list[Any] = []
    for source, field in _declared(connection.scope.get("route")):
        if field.name in names and field.name not in found:
            values, wrong = request_params_to_args([field], _SOURCES[source](connection))
            found.update(values)
            errors += wrong
    if errors:
        raise RequestValidationError(errors)
    for name in names:
        if name not in found:
            found[name] = _raw(name, connection)
    return found


def _raw(name: str, connection: HTTPConnection) -> object:
    """A parameter of the path that nobody declares is taken as it stands."""
    try:
        return connection.path_params[name]
    except KeyError:
        raise LookupError(
            f"a lease is named after {name!r}, which is no parameter of {connection.url.path}: "
            "let the handler declare it"
        ) from None


def _declared(route: Any) -> Iterator[tuple[str, Any]]:
    """Source of each declared parameter, the handler's own before those of its dependencies."""
    for each in dependants(route):
        for source in _SOURCES:
            for field in getattr(each, source):
                yield source, field


def lifespan(
    url: str | None = None,
    *,
    then: Lifespan[Mapping[str, Any] | None] | None = None,
    default: bool = True,
    **options: Any,
) -> Lifespan[Mapping[str, Any]]:
    """`FastAPI(lifespan=lifespan("redis://localhost/0"))`: a client that lives as long as the application.

    Options, errors and shutdown are those of `dibs.contrib.starlette.lifespan`. Every `Held` uses its client,
    also with `default=False`. A `Held` that is named after a parameter that its route does not have fails
    the start, with `ValueError`. With `problems()` the OpenAPI document describes the responses to
    contention and outages at routes with a `Held`.
    """
    client = client_lifespan(url, then=then, default=default, **options)

    @asynccontextmanager
    async def run(app: Any) -> AsyncGenerator[Mapping[str, Any]]:
        _check(app)
        with _documented(app):
            async with client(app) as state:
                yield state

    return run


def _check(app: Any) -> None:
    """Raises `ValueError` for a field that no route has; warns if contention would be answered with 500."""
    held = [(route, each) for route, each in _held_by(app)]
    for route, each in held:
        each.check(route)
    if held and not any(kind in app.exception_handlers for kind in AcquireTimeout.__mro__):
        warnings.warn(
            f"{held[0][1]!r} is in use, and nothing handles AcquireTimeout, so that contention would be "
            "answered with 500: write FastAPI(exception_handlers=problems())",
            stacklevel=2,
        )


@contextmanager
def _documented(app: Any) -> Generator[None]:
    """Add the responses of `problems` to the OpenAPI document, for routes with a `Held`."""
    original = getattr(app, "openapi", None)
    handlers = getattr(app, "exception_handlers", {})
    busy = handlers.get(AcquireTimeout)
    if original is None or not isinstance(busy, ProblemHandler):
        yield
        return

    def openapi() -> Any:
        document = original()
        for route, held in _held_by(app):
            described = openapi_responses(status=held.status or busy.status)
            path = document.get("paths", {}).get(route.path_format, {})
            for method in route.methods or ():
                known = path.get(method.lower(), {}).get("responses", {})
                for code, response in described.items():
                    known.setdefault(str(code), response)
        return document

    app.openapi = openapi
    try:
        yield
    finally:
        app.openapi = original


def _held_by(app: Any) -> Iterator[tuple[Any, Held]]:
    """Every route of an application that holds something, with what it holds."""
    for route in routes_of(app):
        for dependant in dependants(route):
            if isinstance(dependant.call, Held):
                yield route, dependant.call
