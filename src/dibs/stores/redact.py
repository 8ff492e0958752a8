"""URLs as they may be shown."""

import re

_LOGIN = re.compile(r"(?<=http://|ttps://)[^/?#@]*@|(?<=temporal://).*@", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(r"(?<=nats://)[^/?#@:]+(?=@)", re.IGNORECASE)
_PASSWORD = re.compile(
    r"(?<!http://)(?<!ttps://)(?<=://)([^:@]*):.*(?=@)", re.IGNORECASE | re.DOTALL
)
_OPTION = re.compile(
    r"([?&](?:[\w-]*password|(?:api[-_]?)?key)=)[^&]*?(?=&|['\"]?\Z)", re.IGNORECASE
)


def redacted(url: str) -> str:
    """The URL without secrets, also one that is not escaped as it should be.

    These are passwords, in front of the `@` or in an option; and a lone API key or token there.
    """
    url = _TOKEN.sub("***", _LOGIN.sub("***@", url))
    return _OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***", url))
