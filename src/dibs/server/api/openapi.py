"""OpenAPI 3.1 of the service, made from its table of routes and the types that travel."""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dibs.server.api.routing import Needs, Operation
from dibs.stores.http.wire import Problem

type Node = dict[str, Any]

_TEMPLATE = "#/components/schemas/{name}"

_NAME: Node = {
    "type": "string",
    "description": "`base64:` and the bytes in URL-safe base64 without padding",
    "pattern": (
        "^base64:(?:[A-Za-z0-9_-]{4})*"
        "(?:[A-Za-z0-9_-]{4}|[A-Za-z0-9_-][AQgw]|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048])$"
    ),
    "minLength": 9,
    "maxLength": 690,
}

LEASE_ID_HEADER = "Dibs-Lease-Id"

_LEASE_ID = "The lease id, a secret. Use it instead of `id` in the query, which proxies often log"

_EXAMPLES = {"name": "base64:am9icy9uaWdodGx5", "dir": "base64:am9icw"}
"""How `jobs/nightly` is spelt, and the directory that it lies in."""

_ABOUT = """\
Locks as leases: each is held for `ttl` seconds and no longer, unless it is renewed, and every grant of a \
name has a higher fencing token (`sequencer`).

- **Authentication**: `Authorization: Bearer dibs_…`, with a key of `dibs keys create`.
- **Names** are `base64:` and their bytes in URL-safe base64 without padding: `jobs/nightly` is \
`base64:am9icy9uaWdodGx5`.
- **Parameters** go into the query, also for POST, PATCH and DELETE. Send a body only where one is described.
- **To hold a lock**: `POST /v1/locks/base64:am9icy9uaWdodGx5?ttl=30&wait=10`. Then send the `id` of the \
answer in the header `Dibs-Lease-Id`: `PATCH …?ttl=30` each time a third of the ttl is over, `DELETE …` at \
the end. After a 410 it is lost. With `capacity=` it is a semaphore, with `mode=` a readers-writer lock. Add \
`kind=` to later requests about a semaphore or a readers-writer lock.
- **Safe retries**: send a `Dibs-Lease-Id` of your own with the POST, of at least 128 random bits. You can \
then repeat the request. Release the id even if you give up.
- **Errors** are `application/problem+json`: `type` leads to what it means and what to do; a 409 has the \
holders. Only requests that are not valid HTTP get `text/plain`, with 400.
"""

_SUCCESS = {200: "Done", 201: "Created", 204: "Done"}

_EVENTS = """\
Server-sent events: a line `event:` with the name, a line `data:` with the data, and an empty line. \
`x-events` has the type of the data by name, as JSON; `message` is an event without a name. \
Lines that begin with a colon are comments: signs of life.\
"""


def describe(routes: Iterable[Operation]) -> Node:
    """The description of all routes that are documented."""
    shown = [route for route in routes if route.documented]
    schemas, components = _schemas(shown)
    paths: Node = {}
    for route, name in zip(shown, _ids(shown), strict=True):
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route, name, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dibs",
            "summary": "Locks as leases, with fencing tokens",
            "description": _ABOUT,
            "version": "1",
        },
        "servers": [{"url": "/", "description": "The service that gave you this"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(routes: Sequence[Operation]) -> tuple[dict[Any, Node], Node]:
    """The schema of each type in a route, and the components that they refer to."""
    types: list[Any] = [Problem]
    for route in routes:
        answers = [each for kind in route.answers.values() for each in _each(kind)]
        named = (route.body, *answers, *route.events.values())
        types += [each for each in named if each is not None and each not in types]
    found, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    return dict(zip(types, found, strict=True)), components


def _each(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def _about(route: Operation) -> str:
    """All but the first line of the handler's docstring."""
    return (inspect.getdoc(route.handler) or "").partition("\n")[2].strip()


def _path(route: Operation) -> str:
    return route.path.replace("{rest}", "{path}")


def _operation(route: Operation, name: str, schemas: dict[Any, Node]) -> Node:
    operation: Node = {
        "operationId": name,
        "summary": route.summary,
        **({"description": text} if (text := _about(route)) else {}),
        "parameters": [*_in_path(route), *_in_query_or_header(route)],
        "responses": {
            **{str(status): _success(route, status, schemas) for status in route.answers},
            **{str(status): _problem(status) for status in problems_of(route)},
        },
        "x-needs": _needs(route.needs),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.id_in_body,
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    operation["security"] = [] if route.needs.kind == "public" else [{"key": []}]
    return operation


def _ids(routes: Iterable[Operation]) -> list[str]:
    """The id of each operation: its module and method, with a number if there are several."""
    seen: Counter[str] = Counter()
    found = []
    for route in routes:
        module = route.handler.__module__.rpartition(".")[2]
        name = f"{module}_{route.handler.__name__}"
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _in_path(route: Operation) -> list[Node]:
    names = re.findall(r"\{(\w+)\}", _path(route))
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            **({"example": _EXAMPLES[name]} if name in _EXAMPLES else {}),
            "schema": _NAME if name in _EXAMPLES else {"type": "string", "minLength": 1},
        }
        for name in names
    ]


def _in_query_or_header(route: Operation) -> list[Node]:
    kind = route.query
    if kind is None:
        return []
    schema, components = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    found = components.get(kind.__name__, schema[0])
    required, properties = found.get("required", []), found.get("properties", {})
    listed = [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(each)}
        for name, each in properties.items()
    ]
    if "id" in properties:
        plain = _plain(properties["id"]) | {"description": _LEASE_ID}
        listed.append({"name": LEASE_ID_HEADER, "in": "header", "required": False, "schema": plain})
    return listed


def _plain(schema: Node) -> Node:
    """A parameter that was left out is not `null`: there is none in a query."""
    options = schema.get("anyOf")
    if not options:
        return schema
    rest = [each for each in options if each != {"type": "null"}]
    return rest[0] if len(rest) == 1 else {"anyOf": rest}


def _success(route: Operation, status: int, schemas: dict[Any, Node]) -> Node:
    kind = route.answers[status]
    answer: Node = {"description": _SUCCESS.get(status, "Done")}
    if kind is not None:
        options = [schemas[each] for each in _each(kind)]
        schema = options[0] if len(options) == 1 else {"anyOf": options}
        answer["content"] = {route.media: {"schema": schema}}
        if route.events:
            answer["description"] = _EVENTS
            answer["content"][route.media] = {
                "schema": {"type": "string"},
                "x-events": {name: schemas[each] for name, each in route.events.items()},
            }
        if route.also_text:
            answer["content"]["text/plain"] = {"schema": {"type": "string"}}
    return answer


def problems_of(route: Operation) -> list[int]:
    """The statuses of its problems: of every route, of its kind, and its own."""
    found = {400, 503, *route.problems}
    if route.body is not None:
        found |= {408, 413}
    if route.needs.kind != "public":
        found |= {401, 429}
    if route.needs.kind == "everywhere" or (route.needs.kind == "path" and not route.needs.hidden):
        found.add(403)
    return sorted(found)


def _problem(status: int) -> Node:
    return {
        "description": "A problem: its `type` says which, its `detail` what happened",
        "content": {
            "application/problem+json": {"schema": {"$ref": _TEMPLATE.format(name="Problem")}}
        },
    }


def _needs(needs: Needs) -> str:
    scope = f" {needs.scope}" if needs.scope else ""
    return f"{needs.kind}{scope}"
