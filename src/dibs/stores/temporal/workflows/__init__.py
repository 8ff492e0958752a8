"""What all workflows of ours have in common: safe in Temporal's sandbox."""
