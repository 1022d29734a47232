"""Temporal abstraction inside a sequence model: codes that steer it, and learning on the codes."""
