"""The description is true: it names every route, and a fuzzer that relies on it finds no breach."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test
from msgspec import Struct
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dibs.server.api.openapi import describe
from dibs.server.api.routing import (
    PUBLIC,
    BoundOperation,
    Caller,
    route,
    starlette_routes,
    table_of,
)
from dibs.server.app import TABLE
from dibs.server.limits import Limits
from tests.sampling import examples
from tests.server.world import World, b64

NOT_FUZZED = {route.path for route in TABLE if route.media == "text/event-stream"}
"""They do not end."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World.over(limits=Limits(max_wait=0.05)) as world:
        yield world


def test_every_route_is_described() -> None:
    paths = describe(TABLE)["paths"]
    described = {(method.upper(), path) for path, each in paths.items() for method in each}
    documented = {(r.method, r.path.replace("{rest}", "{path}")) for r in TABLE if r.documented}
    assert described == documented
    operations = [each for path in paths.values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_two_operations_for_one_method_and_path_are_refused() -> None:
    class Part:
        @route("GET", ("/x", "/y"), PUBLIC, summary="")
        async def get(self, _: Caller) -> Any: ...

        @route("GET", "/y", PUBLIC, summary="")
        async def again(self, _: Caller) -> Any: ...

    async def respond(*_: Any) -> None: ...

    bound = [BoundOperation(each, Part()) for each in table_of(Part)]
    assert len(starlette_routes(bound[:2], respond)) == 2
    with pytest.raises(ValueError, match="two operations for GET /y"):
        starlette_routes(bound, respond)


def test_a_handler_with_an_unknown_parameter_is_refused() -> None:
    class Name:
        @route("GET", "/x/{word}", PUBLIC, summary="")
        async def get(self, _: Caller, word: str, name: bytes) -> Any: ...

    class Query:
        @route("GET", "/x", PUBLIC, summary="")
        async def get(self, _: Caller, query: Struct) -> Any: ...

    class Body:
        @route("PUT", "/x", PUBLIC, summary="", body=Struct)
        async def put(self, _: Caller, body: Struct) -> Any: ...

    for part, missing in ((Name, "name"), (Query, "query"), (Body, "body")):
        with pytest.raises(TypeError, match=rf"{part.__name__}\..*: nothing gives it {missing}"):
            table_of(part)


def test_it_says_how_ids_and_keys_are_written() -> None:
    description = describe(TABLE)
    for method in ("post", "patch", "delete"):
        operation = description["paths"]["/v1/locks/{name}"][method]
        (header,) = [each for each in operation["parameters"] if each["in"] == "header"]
        assert (header["name"], header["required"]) == ("Dibs-Lease-Id", False)
        assert "secret" in header["schema"]["description"]
    assert "?id=" not in description["info"]["description"], "proxies log queries"
    for command in ("Acquire", "Renew", "Release"):
        fields = description["components"]["schemas"][command]["properties"]
        assert "base64" in fields["key"]["description"]
        assert "not encoded again" in fields["id"]["description"]


def test_it_is_public_and_says_how_to_begin() -> None:
    """Its example is one that is answered."""
    with World.over() as plain:
        description = httpx2.get(f"{plain.url}/v1/openapi.json").json()
        assert (description["openapi"], description["servers"][0]["url"]) == ("3.1.0", "/")
        (path,) = re.findall(r"`POST (\S+)`", description["info"]["description"])
        assert plain.client("acquire").post(path).status_code == 200
    shown = {
        (each["name"], each["example"])
        for operations in description["paths"].values()
        for operation in operations.values()
        for each in operation.get("parameters", ())
        if "example" in each
    }
    assert shown == {("name", b64("jobs/nightly")), ("dir", b64("jobs"))}
    assert path.split("?")[0].endswith(b64("jobs/nightly"))


@pytest.mark.parametrize(
    "sent",
    [
        "FOO /v1/locks HTTP/1.1\r\nHost: x",
        "GET /v1/locks HTTP/1.1\r\nHost: x\r\nContent-Length: many",
        "Hello",
    ],
)
def test_only_what_is_no_http_is_refused_as_text(world: World, sent: str) -> None:
    description = describe(TABLE)["info"]["description"]
    assert "Only requests that are not valid HTTP get `text/plain`, with 400" in description
    with world.connected() as line:
        line.sendall(f"{sent}\r\n\r\n".encode())
        head, _, body = line.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: text/plain" in head
    assert body.count(b"\n") == 0 < len(body)


BOUNDED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


def schema_of(world: World) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(TABLE))
    schema.config.update(base_url=world.url)
    return schema


@pytest.mark.once
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", sorted({r.path for r in TABLE if r.documented} - NOT_FUZZED))
def test_each_operation_does_as_described(world: World, path: str, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {world.admin_key}"}
    for found in schema_of(world).include(path=path).get_all_operations():
        assert isinstance(found, Ok)

        @settings(BOUNDED, max_examples=examples(20))
        @given(found.ok().as_strategy(generation_mode=mode))
        def check(case: Case[Any]) -> None:
            # an empty list is sent as nothing, and nobody can refuse that
            assume([] not in (case.query or {}).values())
            # what goes together, and what one server allows, no schema can say
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

        try:
            check()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "it has no parameter that could be wrong"


@pytest.mark.once
def test_linked_operations_do_as_described(world: World) -> None:
    machine = schema_of(world).exclude(path=sorted(NOT_FUZZED)).as_state_machine()
    key = world.admin_key

    class Machine(machine):  # type: ignore[misc, valid-type]
        def get_call_kwargs(self, case: Case[Any]) -> dict[str, object]:
            return {"headers": {"Authorization": f"Bearer {key}"}}

        def validate_response(self, response: object, case: Case[Any], **more: object) -> None:
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

    run_state_machine_as_test(
        Machine, settings=settings(BOUNDED, max_examples=examples(12), stateful_step_count=6)
    )
