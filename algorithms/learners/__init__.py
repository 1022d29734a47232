"""Learners: what is updated and how, each from one family of papers."""
