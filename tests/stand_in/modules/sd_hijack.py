"""What the host has put around the text encoder."""

from types import SimpleNamespace

current_optimizer = None
model_hijack = SimpleNamespace(comments=[])
