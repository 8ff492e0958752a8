"""Leases in Django: the default store from the settings, and one process that migrates.

Put `"dibs.contrib.django"` into `INSTALLED_APPS`, and name a store:

* `DIBS = "redis://localhost/0"`, or `{"URL": ..., "CONNECT_TIMEOUT": ..., "CALL_TIMEOUT": ...}`;
* `DIBS = {"DATABASE": "default"}`: the server of an entry of `DATABASES`, with its login;
* `DIBS = {"CACHE": "default"}`: the Redis of an entry of `CACHES`.

Then bare primitives of both worlds use it, and `manage.py locked_migrate` migrates.
"""

from dibs.contrib import needs

try:
    import django as _django  # type: ignore[import-untyped]  # noqa: F401  # to tell what is missing
except ModuleNotFoundError as _error:
    raise needs("Django", "django") from _error

from dibs.contrib.django.transactions import locked_atomic

__all__ = ["locked_atomic"]
