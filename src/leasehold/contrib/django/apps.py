"""The application for `INSTALLED_APPS`: it makes the store of the settings the default one."""

from django.apps import AppConfig  # type: ignore[import-untyped]

from leasehold.contrib.django.store import connect_from_settings


class LeaseholdConfig(AppConfig):  # type: ignore[misc]  # Django says nothing of its types
    """Leasehold in a Django project."""

    name = "leasehold.contrib.django"
    label = "leasehold"
    verbose_name = "Leasehold"

    def ready(self) -> None:
        """Connects to nothing yet, and fails for settings that name no store."""
        connect_from_settings()
