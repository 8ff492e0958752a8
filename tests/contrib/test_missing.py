"""Integrations without their packages."""

import subprocess
import sys

import pytest

PACKAGES = {
    "fastapi": ("fastapi", "FastAPI"),
    "django": ("django", "Django"),
    "celery": ("celery", "Celery"),
    "otel": ("opentelemetry", "OpenTelemetry"),
}
"""Modules of `dibs.contrib`: what each imports, and what its error calls that."""


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.multiprocess
def test_an_integration_without_its_package_says_how_to_install_it() -> None:
    tries = (
        f"sys.modules[{package!r}] = None\n"
        f"try: import dibs.contrib.{name}\n"
        "except ImportError as error: print(error)"
        for name, (package, _) in PACKAGES.items()
    )
    assert output_of("\n".join(["import sys", *tries])).splitlines() == [
        f"dibs.contrib.{name} needs {title}: pip install 'dibs[{name}]'"
        for name, (_, title) in PACKAGES.items()
    ]


@pytest.mark.multiprocess
def test_dibs_itself_imports_none_of_them() -> None:
    names = [package for package, _ in PACKAGES.values()]
    code = "import dibs.contrib, dibs.sync, sys; dibs.sync.Lock('x')"
    assert output_of(f"{code}; print([each for each in {names} if each in sys.modules])") == "[]\n"
