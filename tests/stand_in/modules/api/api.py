"""What the WebUI imports once it listens."""
