"""The values of a request's parameters, read as its route declares them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from starlette.requests import HTTPConnection

from dibs.contrib.fastapi.routes import dependants

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
    """Where each declared parameter comes from, the handler's own before those of its dependencies."""
    for each in dependants(route):
        for source in _SOURCES:
            for field in getattr(each, source):
                yield source, field
