"""The place of the Train page in Gradio: an empty element that our own script fills, the same in every version of Gradio."""

from __future__ import annotations

import html
import os
import secrets
from pathlib import Path

import gradio as gr

TOKEN_FILE = ".page-token"


def train_place(token: str) -> gr.HTML:
    """Return the element in which the page will stand, for `render` to put it where Gradio is building.

    A host that renders it among its own tabs takes it as it is; around it a `gr.Blocks` would cost the host's start a web application.
    """
    escaped = html.escape(token, quote=True)
    words = "<p>Loading …</p><noscript>This page needs JavaScript.</noscript>"
    place = f'<div id="lora_loom_train" data-token="{escaped}">{words}</div>'
    return gr.HTML(place, render=False)


def page_token(root: Path) -> str:
    """Return the secret that the page tells the routes; it is kept, so that an open page goes on after a restart."""
    root.mkdir(parents=True, exist_ok=True)
    file = root / TOKEN_FILE
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return file.read_text("ascii").strip() or _another(file)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        token = secrets.token_urlsafe(32)
        out.write(token)
    return token


def _another(file: Path) -> str:
    """Replace a token that a full disk or a killed process left empty."""
    file.unlink(missing_ok=True)
    return page_token(file.parent)
