"""The first words on a connection: who we are, and which database we mean."""

from collections.abc import Sequence
from typing import Any

from dibs.stores.redis.link import Dial, HiredisError, Link, ReplyError, pack
from dibs.stores.redis.settings import Endpoint, Login, Settings
from dibs.stores.redis.trouble import explain, unreachable

_MAY_FAIL = b"CLIENT"
"""Our name in `CLIENT LIST` is a courtesy that a user's ACL may refuse."""


async def connect(settings: Settings, dial: Dial, endpoint: Endpoint) -> Link:
    """A link that is logged in, in the right database. Raises what the port of backends says."""
    words = [*_login(settings.login, settings.protocol), (b"CLIENT", b"SETNAME", b"dibs")]
    if settings.db:
        words.append((b"SELECT", settings.db))
    return (await _greet(settings, dial, endpoint, words))[0]


async def ask_sentinel(
    settings: Settings, dial: Dial, endpoint: Endpoint, question: tuple[Any, ...]
) -> Any:
    """One answer of a Sentinel's."""
    words = [*_login(settings.sentinel_login, 2), question]
    link, answers = await _greet(settings, dial, endpoint, words)
    link.close()
    return answers[-1]


def _login(login: Login, protocol: int) -> list[tuple[Any, ...]]:
    user, password = login
    if protocol == 3:
        auth = (b"AUTH", user or "default", password) if password or user else ()
        return [(b"HELLO", b"3", *auth)]
    if user:
        return [(b"AUTH", user, password)]
    return [(b"AUTH", password)] if password else []


async def _greet(
    settings: Settings, dial: Dial, endpoint: Endpoint, words: Sequence[tuple[Any, ...]]
) -> tuple[Link, list[Any]]:
    data = b"".join(map(pack, words))
    try:
        link, answers = await dial(settings, endpoint, data, len(words))
    except (OSError, ValueError, HiredisError) as error:
        raise unreachable(error, endpoint, encrypted=settings.tls is not None) from error
    for word, answer in zip(words, answers, strict=True):
        if isinstance(answer, ReplyError) and word[0] != _MAY_FAIL:
            link.close()
            raise explain(answer, endpoint)
    return link, answers
