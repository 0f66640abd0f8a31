"""The routes of the pages: plain JSON over a `TrainService`, the same for every version of FastAPI.

Whoever cannot read the page knows no token and gets no answer, so the page's own login guards the routes as well. Writing needs a JSON
body besides, which a page from elsewhere cannot send unasked. What answers is opened by the first question that may be asked.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, Response

from lib_lora.errors import ConfigError, LoraError

if TYPE_CHECKING:
    from lib_lora.ui.train_service import TrainService

log = logging.getLogger(__name__)

PREFIX = "/lora_loom"
TOKEN_HEADER = "X-Loom-Token"
MOST_BYTES = 1 << 20
PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = tuple(sorted(file.name for file in (PROJECT / "javascript").glob("*.js")))
STYLE = "style.css"
KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}
FRESH = {"Cache-Control": "no-store"}

Behind = Callable[[], "TrainService"]


def add_train_routes(app: FastAPI, behind: Behind, token: str) -> None:
    """Put the routes of the Train page into a web application, before those that it has.

    behind: returns what answers, the same each time; threads ask for it at once.
    """
    router = APIRouter(prefix=PREFIX)
    _add_reading(router, behind, token)
    _add_writing(router, behind, token)
    _put_first(app, router)


def add_asset_routes(app: FastAPI) -> None:
    """Serve the page's own scripts and its style, where no WebUI does."""
    router = APIRouter(prefix=PREFIX)

    @router.get("/assets/{name}")
    def asset(name: str) -> Response:
        files = {
            STYLE: PROJECT / STYLE,
            **{each: PROJECT / "javascript" / each for each in SCRIPTS},
        }
        if name not in files:
            raise HTTPException(404)
        return FileResponse(files[name], headers={"Cache-Control": "no-cache"})

    _put_first(app, router)


def _put_first(app: FastAPI, router: APIRouter) -> None:
    """Add routes before a page that is mounted at the root and would take every address."""
    before = list(app.router.routes)
    app.include_router(router)
    added = [route for route in app.router.routes if route not in before]
    app.router.routes[:] = [*added, *before]


def _add_reading(router: APIRouter, behind: Behind, token: str) -> None:
    @router.get("/page")
    def page(request: Request) -> Response:
        return _answer(request, token, lambda: behind().page())

    @router.get("/bases")
    def bases(request: Request) -> Response:
        return _answer(request, token, lambda: behind().bases())

    @router.get("/state")
    def state(request: Request) -> Response:
        asked = request.query_params
        after = asked.get("after", "0")
        seen = int(after) if re.fullmatch("[0-9]{1,15}", after) else 0
        return _answer(request, token, lambda: behind().state(asked.get("run", ""), seen))

    @router.get("/runs/{run}/samples/{name}")
    def sample(request: Request, run: str, name: str) -> Response:
        _check_token(request, token)
        try:
            file = behind().sample(run, name)
        except LoraError:
            file = None
        if file is None:
            raise HTTPException(404)
        return FileResponse(file, headers=KEPT)


def _add_writing(router: APIRouter, behind: Behind, token: str) -> None:
    def post(path: str, act: Callable[..., dict[str, Any]]) -> None:
        async def answer(request: Request) -> Response:
            _check_token(request, token)
            body = await _body(request)
            names = request.path_params
            return await run_in_threadpool(
                _answer, request, token, lambda: act(*names.values(), body)
            )

        router.add_api_route(path, answer, methods=["POST"])

    post("/dataset", lambda body: behind().dataset(body))
    post("/plan", lambda body: behind().plan(body))
    post("/runs", lambda body: behind().add(body))
    post("/prepare", lambda body: behind().prepare(body))
    post("/runs/{run}/command", lambda run, body: behind().command(run, body))


def _check_token(request: Request, token: str) -> None:
    given = request.headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise HTTPException(403, "This page is of another start of the server; reload it.")


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object that was sent."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Accepts application/json.")
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MOST_BYTES:
            raise HTTPException(413)
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "Accepts a JSON object.")
    return body


def _answer(request: Request, token: str, act: Callable[[], dict[str, Any]]) -> Response:
    """Return what `act` returns; whatever goes wrong becomes a sentence and, for a form, the problems of its fields."""
    _check_token(request, token)
    try:
        return _told(act())
    except ConfigError as error:
        # Here and not above: a host's start does not wait for the form.
        from lib_lora.ui.form import problems_of

        told = {"message": str(error), "problems": [list(pair) for pair in problems_of(error)]}
        return _told(told, 422)
    except (LoraError, OSError) as error:
        return _told({"message": str(error)}, 409)
    except Exception:
        log.exception("A question of the page could not be answered.")
        sentence = "Something unforeseen went wrong; the server's log has the details."
        return _told({"message": sentence}, 500)


def _told(content: dict[str, Any], status: int = 200) -> Response:
    """Return an answer in plain ASCII: a file's name need not be valid text, which UTF-8 could not hold but an escape can."""
    raw = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(raw, status, headers=FRESH, media_type="application/json")
