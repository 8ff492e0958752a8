"""Without its framework an integration says how to install it."""

import subprocess
import sys

import pytest


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("package", "framework"), [("fastapi", "FastAPI"), ("django", "Django"), ("celery", "Celery")]
)
def test_a_missing_framework(package: str, framework: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try: import dibs.contrib.{package}\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = f"dibs.contrib.{package} needs {framework}: pip install 'dibs[{package}]'\n"
    assert done.stdout == told


def test_contrib_itself_imports_none() -> None:
    code = (
        "import dibs.contrib, sys\n"
        "print([name for name in ('fastapi', 'django', 'celery') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
