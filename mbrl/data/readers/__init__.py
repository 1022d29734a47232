"""Readers, one file a format or publisher."""
