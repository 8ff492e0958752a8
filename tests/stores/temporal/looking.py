"""What a server says of its workflows."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from dibs.stores.temporal import ids
from dibs.stores.temporal.wire import BrokerInput, text_of


class Looker:
    """Asks the server of a store, in a loop of its own, from either world."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._address = urlsplit(url).netloc

    def ask[T](self, question: Callable[[Client], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await question(await Client.connect(self._address))

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, asked()).result()

    def state(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Whether a workflow runs, and how it ended; None: there never was one."""

        async def look(client: Client) -> WorkflowExecutionStatus | None:
            try:
                return (await client.get_workflow_handle(workflow_id).describe()).status
            except RPCError:
                return None

        return self.ask(look)

    def updates(self, workflow_id: str) -> int:
        """How many updates its newest run has taken."""

        async def look(client: Client) -> int:
            history = await client.get_workflow_handle(workflow_id).fetch_history()
            events = history.events
            return sum(
                each.HasField("workflow_execution_update_accepted_event_attributes")
                for each in events
            )

        return self.ask(look)

    def terminate(self, workflow_id: str) -> None:
        """End it from outside."""

        async def end(client: Client) -> None:
            await client.get_workflow_handle(workflow_id).terminate()

        self.ask(end)

    def start_broker(self, key: bytes) -> None:
        """As a fair workflow does it."""
        queue = queue_of(self._url)

        async def start(client: Client) -> None:
            given = BrokerInput(text_of(key))
            await client.start_workflow(
                ids.BROKER,
                given,
                id=ids.broker_id(key),
                task_queue=queue,
                memo={ids.MEMO: text_of(key)},
            )

        self.ask(start)


def queue_of(url: str) -> str:
    """The queue that a store's URL names."""
    return parse_qs(urlsplit(url).query)["task_queue"][0]


def new_key(kind: str = "lock") -> bytes:
    """A key that no other test uses."""
    return f"{kind}:{uuid4().hex}".encode()
