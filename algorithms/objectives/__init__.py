"""Several objectives at once: sets of policies, and what such a set is worth."""
