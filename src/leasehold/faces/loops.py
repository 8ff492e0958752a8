"""Blocking calls in a running event loop are refused, with the right line."""

import sys


def refuse_in_loop(of: object) -> None:
    """Waiting here would stop every task of the loop, the one that should release included.

    Who has a loop has imported asyncio; threads needn't.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise RuntimeError(_help(type(of).__name__))


def _help(name: str) -> str:
    if name == "Client":
        write = "`from leasehold import connect`, and await the client's methods"
    else:
        write = f"`from leasehold import {name}` and write `async with {name}(...)`"
    return f"a blocking {name} inside a running event loop would stop the loop: {write}"
