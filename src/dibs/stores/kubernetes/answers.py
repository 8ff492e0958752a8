"""What an API server's answer says: its message, what that is about, and whether it is about rights."""

from typing import Any

import msgspec

from dibs.stores.web.reading import Response

_decode = msgspec.json.Decoder().decode


def is_refusal(told: str) -> bool:
    """Whether a 403 is about the object, not about rights: a quota, a policy, or a namespace that ends."""
    lacks_right = 'User "' in told and " cannot " in told
    return not lacks_right and ("is forbidden: " in told or "denied the request" in told)


def message_of(answer: Response) -> str:
    """What an answer says went wrong."""
    try:
        return str(_decode(answer.body)["message"])
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError):
        text = answer.body[:200].decode("utf-8", "replace").strip()
        return f"status {answer.status}{': ' if text else ''}{text}"


def details_of(answer: Response) -> dict[str, Any]:
    """What an API `Status` is about; nothing if the answer is none."""
    try:
        return dict(_decode(answer.body)["details"])
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, ValueError):
        return {}
