"""Leases and the primitives that make them, written once for asyncio and threads over `runtime.port`."""
