"""Read a request's query parameters, and explain what is wrong with them."""

from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from dibs.server.problems import Problem
from dibs.server.wanted import place_in, wanted

MOST = 32
"""Parameters of one request."""


def read[T: Struct](query: bytes, kind: type[T], lease_id: bytes | None = None) -> T:
    """The parameters; `lease_id` is that of the header, which stands for `id`.

    Raises `Problem`, 400, for what `kind` has not, has otherwise, or twice.
    """
    pairs = _pairs(query)
    if lease_id is not None and "id" in kind.__struct_fields__:
        if "id" in pairs:
            raise Problem("malformed", "give the lease id in Dibs-Lease-Id or in id=, not in both")
        pairs["id"] = lease_id.decode("latin-1")
    try:
        found = msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("malformed", _told(str(error), kind)) from None
    if b"null" in query.lower():  # msgspec takes that word for None
        for field in msgspec.structs.fields(kind):
            if field.encode_name in pairs and getattr(found, field.name) is None:
                raise Problem("malformed", f"`{field.encode_name}`: leave it out instead of null")
    return found


def _pairs(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    try:
        if b"%" in query or b"+" in query:
            found = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST
            )
        else:
            parts = query.decode("ascii").split("&")
            found = [part.partition("=")[::2] for part in parts if part]
    except ValueError:
        raise Problem(
            "malformed",
            f"cannot parse the query: it must be percent-encoded UTF-8, at most {MOST} parameters",
        ) from None
    pairs = dict(found)
    if len(pairs) != len(found):
        twice = next(name for name in pairs if sum(name == each for each, _ in found) > 1)
        raise Problem("malformed", f"parameter {twice!r} is given more than once")
    return pairs


def _told(error: str, kind: type[Struct]) -> str:
    """Rewrite msgspec's message in the terms of a query string."""
    if "unknown field" in error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        error = error.replace("Object contains unknown field", "unknown parameter")
        return f"{error}; allowed parameters: {known or 'none'}"
    name = place_in(error)
    words = wanted(kind, name)
    if words:
        return f"`{name}` must be {words}"
    return error.replace("Object missing required field", "missing parameter")
