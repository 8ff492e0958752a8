"""Leases in FastAPI: a dependency that holds one, a lifespan, and problems as RFC 9457 tells them.

`lifespan` and `problems` are of use in any Starlette application.
"""

from leasehold.contrib import needs

try:
    from leasehold.contrib.fastapi.held import Held
    from leasehold.contrib.fastapi.lifespan import lifespan
    from leasehold.contrib.fastapi.problems import problems
except ModuleNotFoundError as _error:
    raise needs("FastAPI", "fastapi") from _error

__all__ = ["Held", "lifespan", "problems"]
