"""What a broker does with its post, without a server."""

import asyncio
import logging

import pytest
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from dibs.backends.temporal.broker import post as broker_post
from dibs.backends.temporal.broker.parts import Bundle
from dibs.backends.temporal.broker.post import A_PORTION, Post
from dibs.backends.temporal.protocol.owners import inbox_of

RUN = "01a201dc-139d-7c25-967c-4abd85365a06"


class Nowhere:
    """An addressee that takes no signal."""

    async def signal(self, *_: object) -> None:
        raise ApplicationError("no more", type="SignalCountLimitExceeded")


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    monkeypatch.setattr(broker_post, "_addressee", lambda inbox: Nowhere())
    monkeypatch.setattr(workflow, "logger", logging.getLogger("dibs"))
    return []


def post_for(landed: list[bool], many: int) -> Post:
    def note(inbox: str, bundle: Bundle, there: bool) -> None:
        landed.append(there)

    post = Post("", note)
    for number in range(many):
        post.to(inbox_of(f"w{number}", RUN)).granted.append("a")
    return post


async def test_what_can_not_be_delivered_for_any_reason_was_not(landed: list[bool]) -> None:
    post = post_for(landed, 1)
    post.send()
    while post.under_way:
        await asyncio.sleep(0)
    assert landed == [False]


async def test_a_burst_leaves_in_parts(landed: list[bool]) -> None:
    post = post_for(landed, 2 * A_PORTION + 1)
    sent = []
    while not post.empty:
        post.send()
        post.send()
        while post.under_way:
            await asyncio.sleep(0)
        sent.append(len(landed))
    assert sent == [A_PORTION, 2 * A_PORTION, 2 * A_PORTION + 1]
