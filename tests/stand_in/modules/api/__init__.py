"""The API of the WebUI, imported with `--api` alone."""
