"""What `dibs doctor` reports about an etcd."""

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from dibs.errors import DibsError
from dibs.model import Finding
from dibs.stores.etcd.url import EtcdSettings
from dibs.stores.web.client import WebClient
from dibs.stores.web.endpoint import is_here
from dibs.stores.web.reading import NotHttp, Response

YOUNG = 1000
"""Revisions that an etcd has written before it should have deleted the first of them."""

type Ask = Callable[[WebClient, bytes, bytes], Awaitable[Response]]


async def examine(
    settings: EtcdSettings, clients: Sequence[WebClient], ask: Ask
) -> Sequence[Finding]:
    """The members that the URL names, their leader, versions and quorum, old revisions, and encryption."""
    found: list[Finding] = []
    statuses = []
    for member, client in zip(settings.members, clients, strict=True):
        name = member.authority
        try:
            answer = await ask(client, b"/v3/maintenance/status", b"{}")
            status = msgspec.json.decode(answer.body) if answer.status == 200 else None
        except (OSError, NotHttp, DibsError, msgspec.MsgspecError) as error:
            advice = "check that the member runs"
            found.append(Finding("member", "warning", f"{name} does not answer: {error}", advice))
            continue
        if status is None:
            found.append(Finding("member", "note", f"{name} shows its status to nobody else"))
            continue
        statuses.append(status)
        found.append(_member(name, status))
    found.append(await _quorum(settings, clients, ask, len(statuses)))
    found += await _history(settings, clients, ask)
    if all(is_here(member.host) for member in settings.members):
        found.append(Finding("encryption", "ok", "none needed: all members are on this machine"))
    elif settings.members[0].tls is None:
        told = "none: anyone on the network path can read and change the traffic"
        found.append(Finding("encryption", "note", told, "write etcds:// if the members have TLS"))
    else:
        found.append(Finding("encryption", "ok", "TLS, and the servers' certificates are checked"))
    return found


def _member(name: str, status: Any) -> Finding:
    version = str(status.get("version", "?"))
    if int(status.get("leader", 0)) == 0:
        return Finding("member", "problem", f"{name} has no leader", "check the other members")
    if status.get("errors"):
        told = f"{name} reports {', '.join(map(str, status['errors']))}"
        return Finding("member", "problem", told, "see `etcdctl alarm list`")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if (3, 5, 0) <= numbers <= (3, 5, 2):
        told = f"{name} is etcd {version}, which can lose writes when it is killed"
        return Finding("member", "problem", told, "upgrade to 3.5.5 or later")
    if numbers < (3, 4, 22) or (3, 5, 0) <= numbers < (3, 5, 5):
        told = f"{name} is etcd {version}, which can stall with many watching clients"
        return Finding("member", "warning", told, "upgrade to 3.4.22, 3.5.5 or later")
    return Finding("member", "ok", f"{name} is etcd {version} and has a leader")


async def _history(
    settings: EtcdSettings, clients: Sequence[WebClient], ask: Ask
) -> Sequence[Finding]:
    """Whether etcd deletes old revisions: each change of a lease is one, and etcd keeps them by default."""
    request = {"key": b64encode(settings.prefix).decode(), "revision": 1, "count_only": True}
    for client in clients:
        try:
            answer = await ask(client, b"/v3/kv/range", msgspec.json.encode(request))
            told = msgspec.json.decode(answer.body)
            if "has been compacted" in str(told):
                return [Finding("history", "ok", "old revisions are deleted")]
            revision = int(told["header"]["revision"])
        except (OSError, NotHttp, DibsError, msgspec.MsgspecError, LookupError, TypeError):
            continue
        if revision <= YOUNG:
            return []
        told = f"all {revision:,} revisions are kept: etcd takes no writes once it has 2 GB of them"
        advice = (
            "start etcd with --auto-compaction-retention=1h, unless it was started within the hour"
        )
        return [Finding("history", "warning", told, advice)]
    return []


async def _quorum(
    settings: EtcdSettings, clients: Sequence[WebClient], ask: Ask, answering: int
) -> Finding:
    """How many members there are, and whether the URL names them."""
    for client in clients:
        try:
            answer = await ask(client, b"/v3/cluster/member/list", b"{}")
            members = msgspec.json.decode(answer.body).get("members") or ()
        except (OSError, NotHttp, DibsError, msgspec.MsgspecError, AttributeError):
            continue
        if not members:
            continue
        count = len(members)
        if count == 1:
            told = "one member: leases are out of reach while it is down"
            return Finding("quorum", "note", told, "three members survive the loss of one")
        if len(settings.members) == 1:
            told = f"{count} members, of which the URL names one"
            return Finding("quorum", "warning", told, "name all members, with commas between")
        told = f"{count} members, {answering} of those in the URL answer"
        return Finding("quorum", "ok" if answering > count // 2 else "problem", told)
    return Finding("quorum", "note", "the list of members is shown to nobody else")
