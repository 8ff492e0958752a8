"""Handlers that are methods: what they are given, and what no table accepts."""

from typing import Annotated, Any

import httpx2
import pytest
from msgspec import Meta, Struct
from starlette.responses import Response

from dibs.server.api.responses import json_response
from dibs.server.api.routing import PUBLIC, SEEING, SIGNED_IN, Caller, route, table_of
from tests.server.inside import application_of
from tests.server.world import World, b64

pytestmark = pytest.mark.once


class Count(Struct, forbid_unknown_fields=True, frozen=True):
    n: Annotated[int, Meta(ge=1)] = 1


class Echo:
    """Answers with what it was given."""

    def __init__(self, greeting: str) -> None:
        self._greeting = greeting

    @route("GET", "/one/{name}", SEEING, summary="One", query=Count)
    async def one(self, caller: Caller, name: bytes, query: Count) -> Response:
        return json_response([self._greeting, caller.allowed, name.decode(), query.n])

    @route("PUT", ("/all", "/all/{dir}/"), SIGNED_IN, summary="All", body=Count, max_body=100)
    async def all(self, caller: Caller, directory: bytes, body: Count) -> Response:
        return json_response([caller.principal.name, directory.decode(), body.n])

    @route("GET", "/words/{word}", PUBLIC, summary="A word", query=Count)
    async def word(self, _: Caller, word: str) -> Response:
        return json_response(word)

    @route("GET", "/words/{word}/{rest}", PUBLIC, summary="A text")
    async def rest(self, _: Caller, rest: str, word: str) -> Response:
        return json_response([word, rest])


class Client:
    """Asks an application in the server's loop, without sockets."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._app = application_of(world, Echo("hello"))

    def ask(self, method: str, path: str, *, key: str = "", **more: Any) -> Any:
        key = key or self._world.admin_key

        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(self._app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
                headers = {"authorization": f"Bearer {key}"}
                return await client.request(method, path, headers=headers, **more)

        answer = self._world.do(send)
        return answer.json() if answer.status_code == 200 else answer.status_code


@pytest.fixture(scope="module")
def world() -> Any:
    world = World.over()
    yield world
    world.close()


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


def test_a_method_gets_what_it_takes(client: Client) -> None:
    assert client.ask("GET", f"/one/{b64('a/b')}?n=3") == ["hello", True, "a/b", 3]
    assert client.ask("GET", "/words/h%C3%B6") == "hö"
    assert client.ask("GET", "/words/a/b/c") == ["a", "b/c"]


def test_one_method_serves_several_paths(client: Client) -> None:
    name = "first administrator"
    assert client.ask("PUT", "/all", json={"n": 2}) == [name, "", 2]
    assert client.ask("PUT", f"/all/{b64('a/b')}/", json={"n": 2}) == [name, "a/b/", 2]


def test_what_it_may_not_see_it_is_told(client: Client, world: World) -> None:
    stranger = world.key("read", prefixes=[b"other/"])
    assert client.ask("GET", f"/one/{b64('a/b')}", key=stranger) == ["hello", False, "a/b", 1]


def test_what_does_not_fit_is_refused_before_it(client: Client) -> None:
    assert client.ask("GET", f"/one/{b64('a')}?n=0") == 400
    assert client.ask("GET", "/one/plain") == 400
    assert client.ask("GET", "/words/a?m=1") == 400, "also where the method does not look at it"
    assert client.ask("PUT", "/all", json={"n": 0}) == 400
    assert client.ask("PUT", "/all", content=b" " * 101) == 413
    assert client.ask("PUT", "/all", json={"n": 2}, key="dibs_x") == 401
    assert client.ask("GET", "/words/a", content=b"x") == 400, "no body is described"
    assert client.ask("POST", "/all") == 405


def test_a_method_cannot_take_what_nothing_gives() -> None:
    class Wrong:
        @route("GET", "/x/{word}", PUBLIC, summary="")
        async def get(self, _: Caller, word: str, name: bytes) -> Any: ...

    class NoQuery:
        @route("GET", "/x", PUBLIC, summary="")
        async def get(self, _: Caller, query: Count) -> Any: ...

    class NoBody:
        @route("PUT", "/x", PUBLIC, summary="", body=Count)
        async def put(self, _: Caller, body: Count) -> Any: ...

    with pytest.raises(TypeError, match=r"Wrong\.get: nothing gives it name"):
        table_of(Wrong)
    with pytest.raises(TypeError, match="query"):
        table_of(NoQuery)
    with pytest.raises(TypeError, match="body"):
        table_of(NoBody)


def test_one_path_has_each_method_once(world: World) -> None:
    with pytest.raises(ValueError, match="two operations for GET /one"):
        application_of(world, Echo("one"), Echo("another"))
