"""The application for `INSTALLED_APPS`: it makes the store of the settings the default one."""

from django.apps import AppConfig  # type: ignore[import-untyped]

from dibs.contrib.django.store import connect_from_settings


class DibsConfig(AppConfig):  # type: ignore[misc]  # Django says nothing of its types
    """Dibs in a Django project."""

    name = "dibs.contrib.django"
    label = "dibs"
    verbose_name = "Dibs"

    def ready(self) -> None:
        """Connects to nothing yet, and fails for settings that name no store."""
        connect_from_settings()
