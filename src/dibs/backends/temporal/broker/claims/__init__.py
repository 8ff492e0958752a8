"""The permits of slot mode that a sharing broker holds."""
