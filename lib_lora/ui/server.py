"""The server of the pages: loopback unless told otherwise, and nothing that leaves the machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from lib_lora.errors import LoraError
from lib_lora.ui.generate_page import CSS, THEME, build_page
from lib_lora.ui.studio import Studio

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


def build_app(studio: Studio, host: str) -> FastAPI:
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

    return gr.mount_gradio_app(
        app, build_page(studio), "/", theme=THEME, css=CSS, footer_links=[], ssr_mode=False
    )


def serve(studio: Studio, host: str, port: int, started: Callable[[str], None]) -> None:
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
        config = uvicorn.Config(build_app(studio, host), log_level="warning")
        shown = f"[{host}]" if ":" in host else host
        started(f"http://{shown}:{listener.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listener])
