"""What a permit is to workflow code, whoever granted it."""
