"""Keys that were created but could not be printed; they are printed only once."""

from typing import TYPE_CHECKING

from dibs.cli.voice import Voice
from dibs.errors import DibsError

if TYPE_CHECKING:
    from dibs.cli.keys_office import Office


def take_back(office: "Office", key_id: str, voice: Voice) -> None:
    """Revoke the key, or warn that it still works."""
    try:
        office.revoke(key_id)
    except DibsError as error:
        told = f"it was not printed but still works: end it with `dibs keys revoke {key_id}`"
        voice.say("warning", f"key {key_id}: {told} ({error})")
    else:
        voice.say("warning", f"key {key_id}: nobody has seen it, so it was revoked")
