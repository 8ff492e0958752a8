"""The dashboard: its files, and the sessions of the browsers that show it."""
