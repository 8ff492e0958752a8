"""Who uses the store and who holds a permit's workflow ID, as workflows do without a broker: never both."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

import dibs.sync
from dibs.backends.temporal.protocol.ids import PERMIT, permit_id
from tests.backends.temporal.looking import Looker, queue_of
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once


class Permit:
    """A permit that somebody takes in the old way, by the ID of a workflow."""

    def __init__(self, url: str, resource: str, slot: str = "0") -> None:
        self._look = Looker(url)
        self._queue = queue_of(url)
        self._given = {"resource": resource, "slot": slot, "lease_seconds": 60}
        self._id = permit_id(resource, slot)
        self._run: str | None = None

    def take(self) -> bool:
        """False while another has it."""

        async def start(client: Client) -> bool:
            from temporalio.exceptions import WorkflowAlreadyStartedError

            try:
                handle: Any = await client.start_workflow(
                    PERMIT,
                    self._given,
                    id=self._id,
                    task_queue=self._queue,
                    execution_timeout=timedelta(seconds=90),
                )
            except WorkflowAlreadyStartedError:
                return False
            self._run = handle.first_execution_run_id
            return True

        return self._look.ask(start)

    def release(self) -> None:
        async def tell(client: Client) -> None:
            await client.get_workflow_handle(self._id, run_id=self._run).signal("release")

        self._look.ask(tell)


def test_a_permits_holder_keeps_others_out(url: str) -> None:
    resource = uuid4().hex
    permit = Permit(url, resource)
    assert permit.take()
    with dibs.sync.connect(url) as client:
        gate = client.semaphore(resource, 1)
        assert gate.try_acquire() is None
        permit.release()
        with gate.acquire(wait=30) as lease:
            assert lease.slot == 0
            assert not permit.take()
        wait_until(permit.take, "its permit is given back")
        permit.release()


def test_other_slots_are_granted_meanwhile(url: str) -> None:
    resource = uuid4().hex
    permit = Permit(url, resource, "1")
    assert permit.take()
    with dibs.sync.connect(url) as client:
        gate = client.semaphore(resource, 3)
        held = [gate.try_acquire(), gate.try_acquire()]
        assert [lease and lease.slot for lease in held] == [0, 2]
        assert gate.try_acquire() is None
    permit.release()


def test_who_asks_not_to_share_does_not(url: str) -> None:
    """A lock shares nothing unless it is asked to."""
    resource = uuid4().hex
    permit = Permit(url, resource)
    assert permit.take()
    with dibs.sync.connect(f"{url}&share=false") as client:
        client.semaphore(resource, 1).acquire(wait=5).release()
        client.lock(resource).acquire(wait=5).release()
    with dibs.sync.connect(url) as client:
        client.lock(resource).acquire(wait=5).release()
    permit.release()


def test_a_lock_shares_where_it_is_asked_to(url: str) -> None:
    resource = uuid4().hex
    with dibs.sync.connect(f"{url}&share=true") as client:
        permit = Permit(url, resource)
        assert permit.take()
        assert client.lock(resource).try_acquire() is None
        permit.release()
        with client.lock(resource, wait=30):
            assert not permit.take()
