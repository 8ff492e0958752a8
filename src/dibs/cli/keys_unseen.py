"""Keys that were made, and could not be shown: each is shown once, so that nobody will ever have it."""

from typing import TYPE_CHECKING

from dibs.cli.voice import Voice
from dibs.errors import DibsError

if TYPE_CHECKING:
    from dibs.cli.keys_office import Office


def take_back(office: "Office", key_id: str, voice: Voice) -> None:
    """Revoke the key, or say that it is good still."""
    try:
        office.revoke(key_id)
    except DibsError as error:
        told = f"nobody has seen it, and it is good still: `dibs keys revoke {key_id}` ends it"
        voice.say("warning", f"key {key_id}: {told} ({error})")
    else:
        voice.say("warning", f"key {key_id}: nobody has seen it, so it was revoked")
