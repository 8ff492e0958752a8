"""Defect 18, worker versions: what is held goes over to the next version of the workers that serve it."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from dibs.model import Granted
from dibs.temporal import TemporalWorker
from tests.servers.temporal import TemporalServer
from tests.temporal.brokers import Brokered
from tests.temporal.workers import connected, unique, until

pytestmark = [pytest.mark.once]


def build(name: str, number: str) -> WorkerDeploymentConfig:
    """A worker's place in a deployment."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(name, number),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )


async def make_current(client: Client, name: str, number: str) -> None:
    """New workflows, and those that go over by themselves, are that version's."""

    async def done() -> bool:
        request = SetWorkerDeploymentCurrentVersionRequest(
            namespace="default", deployment_name=name, build_id=number, identity="a test"
        )
        try:
            await client.workflow_service.set_worker_deployment_current_version(
                request, timeout=timedelta(seconds=5)
            )
        except RPCError:
            return False  # it has not been heard of yet
        return True

    await until(done)


async def test_a_broker_goes_over_to_the_next_version(temporal_server: TemporalServer) -> None:
    client, name = await connected(temporal_server), unique("deployment")
    here = Brokered(client, unique("queue"))

    def served_by(number: str) -> TemporalWorker:
        place = build(name, number)
        return TemporalWorker(client, task_queue=here.queue, deployment_config=place)

    async with served_by("1"):
        await make_current(client, name, "1")
        first = await here.ask(here.acquire("a", ttl=600.0))
        async with served_by("2"):
            await make_current(client, name, "2")
    async with served_by("2"), asyncio.timeout(60):
        again = await here.ask(here.acquire("a", ttl=600.0))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.token == first.token
    described = (await here.handle.describe()).raw_description
    versions = described.workflow_execution_info.versioning_info
    assert versions.version.endswith(".2")
