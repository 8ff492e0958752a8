"""Query, lease id and body of requests, decoded by msgspec, with errors that people can read."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from msgspec import inspect as types
from starlette.requests import ClientDisconnect

from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Caller
from dibs.server.quotas import FairQueue

MAX_PARAMETERS = 32
"""Parameters of one request."""

MAX_ID_BODY = 1024
"""Bytes of a body with a lease id."""

# -- query ------------------------------------------------------------------------------------------


def read_query[T: Struct](query: bytes, kind: type[T], lease_id: bytes | None = None) -> T:
    """The parameters of a query; `lease_id` is that of the header, which stands for `id`.

    Raises `ApiProblem`, 400, for unknown, malformed or repeated parameters.
    """
    pairs = _pairs(query)
    if lease_id is not None and "id" in kind.__struct_fields__:
        if "id" in pairs:
            raise _several_ids()
        pairs["id"] = lease_id.decode("latin-1")
    try:
        found = msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiProblem("malformed", _describe_error(str(error), kind)) from None
    if [each for each in pairs.values() if len(each) == 4 and each.lower() == "null"]:
        for field in msgspec.structs.fields(kind):
            # msgspec takes that word for None
            if field.encode_name in pairs and getattr(found, field.name) is None:
                raise ApiProblem(
                    "malformed", f"`{field.encode_name}`: leave it out instead of null"
                )
    return found


def _pairs(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    try:
        if b"%" in query or b"+" in query:
            found = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MAX_PARAMETERS,
            )
        else:
            parts = query.decode("ascii").split("&")
            found = [part.partition("=")[::2] for part in parts if part]
    except ValueError:
        raise ApiProblem(
            "malformed",
            "cannot parse the query: it must be percent-encoded UTF-8, "
            f"at most {MAX_PARAMETERS} parameters",
        ) from None
    pairs = dict(found)
    if len(pairs) != len(found):
        twice = next(name for name in pairs if sum(name == each for each, _ in found) > 1)
        raise ApiProblem("malformed", f"parameter {twice!r} is given more than once")
    return pairs


def _describe_error(error: str, kind: type[Struct]) -> str:
    """msgspec's message in the terms of a query."""
    if "unknown field" in error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        error = error.replace("Object contains unknown field", "unknown parameter")
        return f"{error}; allowed parameters: {known or 'none'}"
    name = place_in(error)
    words = describe_type(kind, name)
    if words:
        return f"`{name}` must be {words}"
    return error.replace("Object missing required field", "missing parameter")


# -- body -------------------------------------------------------------------------------------------

SMALL_BODY = 1 << 16
"""Bytes of a body that needs no room which all API keys share. A connection buffers as many anyway."""


@dataclass(eq=False)
class BodyReader:
    """Reads bodies within bounds of size and time, and in turns between API keys."""

    _small: FairQueue
    _large: FairQueue
    _seconds: float

    async def read(self, caller: Caller, most: int) -> bytes:
        """All of the body. Raises `ApiProblem`, 413 if it has more than `most` bytes, 408 if it is late.

        Raises `ClientDisconnect` if the caller hangs up.
        """
        declared = caller.headers.get(b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > most):
            raise _too_large(most)
        length = most if declared is None else int(declared)
        turns = self._small if length <= SMALL_BODY else self._large
        try:
            async with (
                turns.turn(caller.principal.key_id or caller.ip, length),
                asyncio.timeout(self._seconds),
            ):
                return await _read(caller, most)
        except TimeoutError:
            raise ApiProblem(
                "late",
                f"a request body must arrive within {self._seconds:g} s",
                headers=((b"connection", b"close"),),
            ) from None


async def _read(caller: Caller, most: int) -> bytes:
    """Read by messages: Starlette's own limit answers otherwise than with a problem."""
    parts, length, more = list[bytes](), 0, True
    while more:
        message = await caller.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        more = message.get("more_body", False)
        if length > most:
            raise _too_large(most)
    return b"".join(parts)


def decode_body[T](body: bytes, kind: "type[T] | Any") -> Any:
    """A body of JSON. Raises `ApiProblem`, 400, if it is no JSON or does not fit `kind`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiProblem("malformed", f"the body: {error}") from None


async def id_in_body[T: Struct](
    query: T, caller: Caller, kind: "type[T] | Any", bodies: BodyReader
) -> T:
    """The query with the lease id of the body, if there is one. Raises `ApiProblem`: 400, 408, 413."""
    raw = await bodies.read(caller, MAX_ID_BODY)
    if not raw:
        return query
    try:
        body = decode_body(raw, kind)
    except ApiProblem as problem:
        hint = "other parameters belong in the query, as in ?ttl=30"
        raise ApiProblem(problem.kind, f"{problem.detail}; {hint}") from None
    if query.id is not None:  # type: ignore[attr-defined]
        raise _several_ids()
    return msgspec.structs.replace(query, id=body.id)


def has_body(caller: Caller) -> bool:
    """Whether the request has a body, which can still be empty if its length is not declared."""
    headers = caller.headers
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _several_ids() -> ApiProblem:
    return ApiProblem(
        "malformed", "give the lease id once: in Dibs-Lease-Id, in the body or in id="
    )


def _too_large(most: int) -> ApiProblem:
    return ApiProblem(
        "body-too-large",
        f"the body must be at most {most} bytes long",
        headers=((b"connection", b"close"),),
    )


# -- types in words ---------------------------------------------------------------------------------

_WHERE = re.compile(r" - at `\$\.([^`]+)`$")


def place_in(error: str) -> str:
    """The place that an error of msgspec names: fields with dots between; empty if it names none."""
    found = _WHERE.search(error)
    return found[1] if found else ""


def describe_type(kind: type[Struct], place: str) -> str:
    """The values that a field can have, in plain words; empty if there are no words or no such field."""
    node: Any = types.type_info(kind)
    words = ""
    for name in place.split("."):
        fields = node.fields if isinstance(node, types.StructType) else ()
        found = [field.type for field in fields if field.encode_name == name]
        if not found:
            return ""
        node, words = _plain(found[0])
    return words or _in_words(node)


def _plain(node: Any) -> tuple[Any, str]:
    """The type inside unions and metadata, and its words in there."""
    words = ""
    while isinstance(node, types.Metadata | types.UnionType):
        if isinstance(node, types.UnionType):
            node = next(each for each in node.types if not isinstance(each, types.NoneType))
        else:
            words = (node.extra or {}).get("words", words)
            node = node.type
    return node, words


def _in_words(node: Any) -> str:
    match node:
        case types.LiteralType(values=values):
            return f"one of {', '.join(str(each) for each in values if each)}"
        case types.IntType():
            return f"a whole number{_bounds(node)}"
        case types.FloatType():
            return f"a number{_bounds(node)}"
        case types.BoolType():
            return "true or false"
        case _:
            return ""


def _bounds(node: types.IntType | types.FloatType) -> str:
    least = f", {node.ge} at least" if node.ge is not None else ""
    above = f", above {node.gt}" if node.gt is not None else ""
    most = f", {node.le} at most" if node.le is not None else ""
    return f"{least}{above}{most}"
