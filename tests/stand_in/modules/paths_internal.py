"""Folders."""

data_path = "."
