"""Leases in FastAPI: a dependency that holds one, a lifespan, and problem details (RFC 9457)."""

from dibs.contrib import needs

try:
    from dibs.contrib.fastapi.held import Held, lifespan
    from dibs.contrib.fastapi.routes import openapi_responses
    from dibs.contrib.starlette import problems
except ModuleNotFoundError as _error:
    raise needs("FastAPI", "fastapi") from _error

__all__ = ["Held", "lifespan", "openapi_responses", "problems"]
