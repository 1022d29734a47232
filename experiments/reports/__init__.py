"""Figures, and pages about runs and papers."""
