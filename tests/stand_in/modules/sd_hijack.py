"""The attention in use."""

current_optimizer = None
