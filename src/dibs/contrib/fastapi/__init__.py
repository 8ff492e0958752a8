"""Leases in FastAPI: a dependency that holds one, a lifespan, and problem details (RFC 9457).

`lifespan` and `problems` work in any Starlette application.
"""

from dibs.contrib import needs

try:
    from dibs.contrib.fastapi.held import Held, lifespan
    from dibs.contrib.fastapi.problems import openapi_responses, problems
except ModuleNotFoundError as _error:
    raise needs("FastAPI", "fastapi") from _error

__all__ = ["Held", "lifespan", "openapi_responses", "problems"]
