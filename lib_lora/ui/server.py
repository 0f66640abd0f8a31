"""The server of the pages: loopback unless told otherwise, and nothing that leaves the machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from lib_lora.errors import LoraError
from lib_lora.jobs.queue import Queue
from lib_lora.ui.attendant import Attendant
from lib_lora.ui.generate_page import CSS, THEME, build_generate_page
from lib_lora.ui.routes import PREFIX, SCRIPTS, STYLE, add_asset_routes, add_train_routes
from lib_lora.ui.studio import Studio
from lib_lora.ui.train_page import page_token, train_place
from lib_lora.ui.train_service import open_service

TITLE = "LoRA Loom"

# The browser itself refuses every request to another server, and every frame around the page.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:;"
    " worker-src 'self' blob:; frame-ancestors 'none'"
)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a server at this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def build_page(studio: Studio, token: str) -> gr.Blocks:
    """Return the pages, side by side in tabs."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(f"# {TITLE}")
        with gr.Tab("Train", id="train"):
            train_place(token).render()
        with gr.Tab("Generate", id="generate"):
            build_generate_page(studio)
    return page


def build_app(studio: Studio, host: str, runs: Path) -> FastAPI:
    """Return the web application. On loopback it answers to no other name, so that no web page can reach it by one."""
    app = FastAPI(openapi_url=None)
    if is_loopback(host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])

    @app.middleware("http")
    async def policy(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await answer(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    token = page_token(runs)
    app = gr.mount_gradio_app(
        app,
        build_page(studio, token),
        "/",
        theme=THEME,
        css=CSS,
        head=_head(),
        footer_links=[],
        ssr_mode=False,
    )
    add_asset_routes(app)
    start = studio.defaults
    sizes = {start.base.absolute(): start.size} if start.size else {}
    service = open_service(studio, runs, TITLE, sizes)
    add_train_routes(app, lambda: service, token)
    return app


def _head() -> str:
    """Return what brings our scripts and our style into the page, as the WebUI does by itself."""
    scripts = (f'<script src="{PREFIX}/assets/{name}" defer></script>' for name in SCRIPTS)
    return f'<link rel="stylesheet" href="{PREFIX}/assets/{STYLE}">{"".join(scripts)}'


def serve(studio: Studio, host: str, port: int, runs: Path, started: Callable[[str], None]) -> None:
    """Serve until stopped; port 0 takes a free one. `started` gets the address. Raises LoraError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            raise LoraError(
                f"Port {port} of {host} cannot be used ({error.strerror}); choose another with --port."
            ) from None
        config = uvicorn.Config(build_app(studio, host, runs), log_level="warning")
        shown = f"[{host}]" if ":" in host else host
        attendant = Attendant(lambda: (studio, Queue(runs, TITLE)))
        attendant.start()
        started(f"http://{shown}:{listener.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listener])
        attendant.close()
