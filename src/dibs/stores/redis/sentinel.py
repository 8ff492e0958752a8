"""Which server is the master, as the Sentinels say; asked anew for every connection."""

from dibs.errors import BackendUnavailable, DibsError, Forbidden
from dibs.stores.redis import greeting
from dibs.stores.redis.link import Dial, Link, pack
from dibs.stores.redis.settings import Endpoint, Settings
from dibs.stores.redis.trouble import broken


async def connect(settings: Settings, dial: Dial) -> Link:
    """A link to the master. Raises `BackendUnavailable` if no Sentinel leads to one."""
    tried: list[DibsError] = []
    for each in settings.endpoints:
        try:
            return await _connect_by(settings, dial, each)
        except (BackendUnavailable, Forbidden) as error:
            tried.append(error)
    if all(isinstance(error, Forbidden) for error in tried):
        raise tried[0]
    told = "; ".join(str(error) for error in tried)
    raise BackendUnavailable(f"no Sentinel leads to the master {settings.service!r}: {told}")


async def _connect_by(settings: Settings, dial: Dial, sentinel: Endpoint) -> Link:
    question = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.service)
    found = await greeting.ask_sentinel(settings, dial, sentinel, question)
    if not found:
        raise BackendUnavailable(f"the Sentinel at {sentinel} knows no {settings.service!r}")
    master = Endpoint(found[0].decode(), int(found[1]))
    link = await greeting.connect(settings, dial, master)
    try:
        role = (await link.ask(pack((b"ROLE",))))[0]
    except BaseException as error:
        link.close()
        if isinstance(error, OSError):
            raise broken(error, master) from error
        raise
    if isinstance(role, list) and role[0] != b"master":  # an ACL may refuse to tell: then believe
        link.close()
        raise BackendUnavailable(
            f"{master} is no master any more, and the Sentinel at {sentinel} does not know it yet"
        )
    return link
