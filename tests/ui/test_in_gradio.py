"""The Train page in the Gradio that is installed, as a host's tab: built by our scripts from our routes, in a real browser."""

import re
import socket
import threading
import time

import gradio as gr
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from lib_lora.jobs.client import append_event, create, new_folder
from lib_lora.jobs.queue import Queue
from lib_lora.ui.preparation import Preparation
from lib_lora.ui.request import Requests
from lib_lora.ui.routes import PREFIX, SCRIPTS, STYLE, add_asset_routes, add_train_routes
from lib_lora.ui.train_page import page_token, train_place
from lib_lora.ui.train_service import TrainService
from tests.ui.browser import CHROMIUM, NO_CHROMIUM, elements_of
from tests.ui.hosts import FolderHost

HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture
def host(tmp_path):
    (tmp_path / "base.safetensors").touch()
    return FolderHost(tmp_path, tmp_path / "base.safetensors")


def build_app(host, runs):
    """Return a host's application: a page with tabs, one of them ours, and our scripts in its head as a WebUI puts them there."""
    app, token = FastAPI(), page_token(runs)
    tags = "".join(f'<script src="{PREFIX}/assets/{name}"></script>' for name in SCRIPTS)
    head = f'<link rel="stylesheet" href="{PREFIX}/assets/{STYLE}">{tags}</head>'

    @app.middleware("http")
    async def add_scripts(request: Request, answer):
        response = await answer(request)
        if request.url.path != "/" or not response.headers["content-type"].startswith("text/html"):
            return response
        body = b"".join([part async for part in response.body_iterator]).decode()
        return Response(body.replace("</head>", head, 1), media_type="text/html")

    tab = train_place(token)
    with gr.Blocks(analytics_enabled=False) as page, gr.Tabs(), gr.TabItem("LoRA Loom"):
        tab.render()
    app = gr.mount_gradio_app(app, page, "/")
    ready = Preparation(lambda extra: None, lambda tell, extra: None, True)
    service = TrainService(host, Queue(runs), ready, Requests(host, host.folder))
    add_asset_routes(app)
    add_train_routes(app, lambda: service, token)
    return app


@pytest.fixture
def address(host, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(build_app(host, tmp_path / "runs"), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_the_page_builds_itself_and_reads_no_text_as_markup(address, tmp_path):
    config = {"saving": {"out": f"/x/{HOSTILE}.safetensors"}, "schedule": {"steps": 9}}
    run = create("train", config, new_folder(tmp_path / "runs", "train"))
    append_event(run, "note", {"text": HOSTILE})
    append_event(run, "failed", {"message": HOSTILE})
    page = elements_of(address, tmp_path / "browser")
    assert page.count('name="network.rank"') == 1
    assert re.search(r'<label for="loom_network_rank">Rank</label>', page)
    assert "base (in use)" in page
    assert "Start training" in page
    assert "taken" not in re.search(r"<title>.*?</title>", page)[0]
    assert page.count("&lt;img src=x") >= 3
    assert not re.search(r"<img[^>]*onerror", page)
