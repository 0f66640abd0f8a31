"""Precision."""

from contextlib import nullcontext as autocast

__all__ = ["autocast"]


def torch_gc():
    pass
