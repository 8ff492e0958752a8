"""The dashboard: its pages and files."""
