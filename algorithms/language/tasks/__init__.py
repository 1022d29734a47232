"""Text tasks by name."""
