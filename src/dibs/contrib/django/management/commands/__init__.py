"""The commands of `manage.py`, each in a file of its name."""
