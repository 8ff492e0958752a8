"""The SDK whose `renew` and `release` are true only if the body is the text OK."""

from dibs.server.answers import Answer, json
from dibs.server.call import Call
from dibs.server.routes.telling import DONE

OK = json("OK")


def is_old_sdk(call: Call) -> bool:
    """Whether it is the one that asks.

    It sends these three headers, with no body; nobody who only uses the same HTTP library does.
    """
    headers = call.headers
    return (
        headers.get(b"user-agent", b"").startswith(b"python-requests/")
        and headers.get(b"accept") == b"application/json"
        and headers.get(b"content-type") == b"application/json"
    )


def done(call: Call) -> Answer:
    """It is done, as whoever asks understands it."""
    return OK if is_old_sdk(call) else DONE
