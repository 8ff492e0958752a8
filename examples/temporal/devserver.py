"""Where the examples of this folder run: on your Temporal server, or on one of their own."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.testing import WorkflowEnvironment

from dibs import DibsError
from dibs.temporal import DibsPlugin, TemporalWorker

CONNECT = 10.0
"""How long a server may take to answer, in seconds."""


def run_example(main: Coroutine[Any, Any, None], about: str | None) -> None:
    """Run an example; with anything but `--dev` on the command line only print what it does."""
    if given := {*sys.argv[1:]} - {"--dev"}:
        main.close()
        print(about)
        sys.exit(0 if given <= {"-h", "--help"} else 2)
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        sys.exit(130)


def say(text: str) -> None:
    """Print a line. If nobody reads them any more, as with `| head`, end the example.

    Otherwise the activity would fail, and Temporal would retry it for ever.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.kill(os.getpid(), signal.SIGINT)


@asynccontextmanager
async def temporal() -> AsyncGenerator[Client]:
    """A client, and a worker that serves permits and brokers, as `dibs temporal worker` does."""
    async with AsyncExitStack() as stack:
        # the SDK's threads must be done before the interpreter ends: temporalio/sdk-python#300
        stack.push_async_callback(asyncio.sleep, 0.1)
        if "--dev" in sys.argv[1:]:
            client = (await stack.enter_async_context(await dev_server())).client
        else:
            client = await connected()
        try:
            await stack.enter_async_context(TemporalWorker(client))
        except DibsError as error:  # such as a namespace that isn't there
            sys.exit(str(error))
        yield client


async def dev_server() -> WorkflowEnvironment:
    """A server in memory, on a free port, for as long as the block."""
    found = program()
    if found is None:
        sys.exit(
            "--dev needs Temporal's command line tool, `temporal`, on the PATH: see "
            "https://docs.temporal.io/cli; in a clone `make env` fetches one"
        )
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=found, dev_server_log_level="error", plugins=[DibsPlugin()]
    )


async def connected() -> Client:
    """To the server that TEMPORAL_ADDRESS or a profile names, else to localhost:7233."""
    settings = {"target_host": "localhost:7233"} | ClientConfig.load_client_connect_config()
    if ":" not in settings["target_host"]:
        settings["target_host"] += ":7233"
    host, _, port = settings["target_host"].rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT)
    except (OSError, ValueError):  # a time-out is one, too
        tool = "temporal" if shutil.which("temporal") else program() or "temporal"
        sys.exit(
            f"no Temporal server answers at {host}:{port}: start one with `{tool} server start-dev`, "
            "or give --dev to have one started for this run"
        )
    writer.close()
    return await Client.connect(**settings, plugins=[DibsPlugin()])


def program() -> str | None:
    """Temporal's command line tool: on the PATH, or in a clone as `make env` has fetched it."""
    fetched = Path(__file__).parents[2].glob(".tools/servers/temporal-*/bin/temporal")
    return shutil.which("temporal") or next(map(str, fetched), None)
