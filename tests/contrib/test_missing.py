"""Integrations without their packages."""

import subprocess
import sys

import pytest

PACKAGES = {
    "fastapi": ("fastapi", "FastAPI"),
    "django": ("django", "Django"),
    "celery": ("celery", "Celery"),
    "starlette": ("starlette", "Starlette"),
    "flask": ("flask", "Flask"),
    "dramatiq": ("dramatiq", "Dramatiq"),
    "arq": ("arq", "arq"),
    "otel": ("opentelemetry", "OpenTelemetry"),
    "alembic": ("alembic", "Alembic"),
}
"""Modules of `dibs.contrib`: what each imports, and what its error calls that."""


@pytest.mark.multiprocess
def test_an_integration_without_its_package_says_how_to_install_it() -> None:
    tries = (
        f"sys.modules[{package!r}] = None\n"
        f"try: import dibs.contrib.{name}\n"
        "except ImportError as error: print(error)"
        for name, (package, _) in PACKAGES.items()
    )
    program = "\n".join(["import sys", *tries])
    found = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert found.splitlines() == [
        f"dibs.contrib.{name} needs {title}: pip install 'dibs[{name}]'"
        for name, (_, title) in PACKAGES.items()
    ]
