"""What Django looks for here: commands of `manage.py`."""
