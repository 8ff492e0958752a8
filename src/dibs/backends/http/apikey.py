"""Where the API key is: in the URL, in a file, or in the environment."""

import os
from pathlib import Path

from dibs.backends.http.settings import FindKey, Key
from dibs.errors import NotConfigured

VARIABLE = "DIBS_API_KEY"
FILE_VARIABLE = "DIBS_API_KEY_FILE"

HOW = f"set {VARIABLE}, or {FILE_VARIABLE} to a file that has it"


def key_finder(in_url: str, file: str | None) -> FindKey:
    """What finds the key: the URL's own comes first, then its file, then the environment's two.

    The function raises `NotConfigured` for a file that can't be read, or a key that can't be one.
    """

    def find() -> Key | None:
        if in_url:
            return _checked(in_url, "the URL")
        if file is not None:
            return _read(file, "key_file")
        if secret := os.environ.get(VARIABLE, "").strip():
            return _checked(secret, VARIABLE)
        if path := os.environ.get(FILE_VARIABLE):
            return _read(path, FILE_VARIABLE)
        return None

    return find


def _read(path: str, said_by: str) -> Key:
    try:
        text = Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise NotConfigured(f"the API key's file {path} ({said_by}) can't be read: {why}") from None
    if not text:
        raise NotConfigured(f"the API key's file {path} ({said_by}) is empty")
    return _checked(text, f"the file {path}")


def _checked(secret: str, place: str) -> Key:
    """It travels in a header, so it is one word. Never shown, as half a key is a secret too."""
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise NotConfigured(f"what {place} has is no API key: a key is one word, such as dibs_…")
    return Key(secret, place)
