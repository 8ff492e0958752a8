"""Answers for Seaplane's Python SDK, which takes only the text `OK` (restrictions: `Ok`) for success."""

from typing import Literal

from starlette.responses import Response

from dibs.server.api.responses import json_response
from dibs.server.call import Call
from dibs.server.routes.telling import DONE


def is_seaplane_sdk(call: Call) -> bool:
    """Whether the SDK sent the request: these headers together come from no other client of `requests`."""
    headers = call.headers
    return (
        headers.get(b"user-agent", b"").startswith(b"python-requests/")
        and headers.get(b"accept") == b"application/json"
        and headers.get(b"content-type") == b"application/json"
    )


def done(call: Call, success: Literal["OK", "Ok"] = "OK") -> Response:
    """The answer of a request that succeeded; `success` is what the SDK expects."""
    return json_response(success) if is_seaplane_sdk(call) else DONE
