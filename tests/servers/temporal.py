"""A Temporal server for development, of its own for a test."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from tests.servers.binaries import temporal_program
from tests.servers.ports import HOST
from tests.servers.server import Server


class TemporalServer(Server):
    """What `temporal server start-dev` starts, with the namespace `default`, in memory.

    With `on_file` it keeps what it has in its folder, so a killed one comes back with it. `dynamic` is
    dynamic configuration: `{"frontend.WorkflowTimeSkippingEnabled": "true"}`.
    """

    PORT_IS_TAKEN = "in use"

    def __init__(
        self, folder: Path, *, on_file: bool = False, dynamic: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.program = temporal_program()
        self.file = folder / "temporal.db" if on_file else None
        self.dynamic = dict(dynamic or {})

    @property
    def address(self) -> str:
        """`host:port`, as Temporal's own clients take it."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """As a store of ours."""
        return f"temporal://{self.address}/default"

    def _command(self) -> list[str | Path]:
        command: list[str | Path] = [self.program.path, "server", "start-dev", "--headless"]
        command += ["--ip", HOST, "--port", str(self.port), "--log-level", "error"]
        if self.file is not None:
            command += ["--db-filename", self.file]
        for name, value in self.dynamic.items():
            command += ["--dynamic-config-value", f"{name}={value}"]
        return command

    def _answers(self) -> bool:
        with ThreadPoolExecutor(1) as thread:  # a test's own loop may be running here
            return thread.submit(asyncio.run, _has_its_namespace(self.address)).result()


async def _has_its_namespace(address: str) -> bool:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.client import Client

    try:
        client = await Client.connect(address)
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace="default"), timeout=timedelta(seconds=2)
        )
    except RuntimeError:  # no connection, or an RPCError, which is one
        return False
    return True
