"""Conversations: how tokens are drawn, how turns go on, and where those of a round come from."""
