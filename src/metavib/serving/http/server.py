"""The server's routes: what there is, described by OpenAPI, and a page.

Annotations are evaluated here as they stand (there is no `from __future__ import annotations`): FastAPI reads
them, and what they name is imported where it is used.
"""

from http import HTTPStatus
from importlib.resources import files
from inspect import signature
from typing import Annotated, Any, Literal

from metavib import __version__
from metavib.core.errors import require_installed
from metavib.serving.http import pixel_arrays
from metavib.serving.http.answers import ModelFacts, Reply, State, facts_of
from metavib.serving.http.guards import Access, Guard, Scope, Send, json_of
from metavib.serving.http.refusals import Problem, Refusal, our_fault
from metavib.serving.http.service import PREDICT, Service
from metavib.serving.http.uploads import Receive

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_BINARY = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": _BINARY},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"image": {"type": "array", "items": _BINARY}}}
            },
            pixel_arrays.TYPE: {"schema": _BINARY},
        },
    }
}
_PROBLEMS = {
    400: "The body is empty or no form",
    401: "The token is missing or wrong",
    403: "Asked for by another name, or by a page of another site",
    408: "The body came too slowly",
    413: "Too many bytes, pixels or images",
    415: "No image, or none of a kind that is read",
    422: "A damaged image, an unknown option, or an answer that is not finite",
    503: "Too busy; Retry-After says when to come again",
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": Reply,
        "description": "Predictions, in the order of the images; as a table for who accepts one",
        "content": {pixel_arrays.TYPE: {"schema": _BINARY}},
    },
    **{status: {"model": Problem, "description": text} for status, text in _PROBLEMS.items()},
}


class Fixed:
    """An answer that is always the same."""

    def __init__(self, content: bytes, kind: str = "application/json") -> None:
        self._content = content
        self._head = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]

    async def send(self, send: Send) -> None:
        """Send one message to the client."""
        await send({"type": "http.response.start", "status": 200, "headers": self._head})
        await send({"type": "http.response.body", "body": self._content})


def build_app(service: Service, access: Access) -> Guard:
    """The routes of a service, behind its guard."""
    require_installed("fastapi", "the server needs FastAPI", extra="serve")
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    # Later versions report to a collector where the surroundings ask for it: nothing of ours leaves the machine.
    silent = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    options: dict[str, Any] = {"telemetry": silent} if "telemetry" in signature(FastAPI).parameters else {}
    app = FastAPI(
        **options,
        title="metavib",
        version=__version__,
        description="Classifies images, and says when it is unsure.",
        lifespan=service.running,
        docs_url=None,  # these pages load from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )

    def as_json(value: Any, status: int = 200, headers: Any = None) -> Response:
        return Response(json_of(value), status, headers, media_type="application/json")

    @app.post(
        PREDICT,
        summary="Classify one image (the body) or several (a form, or an array of pixels)",
        response_model=None,
        responses=_RESPONSES,
        openapi_extra=_BODY,
    )
    async def predict(
        top: Annotated[int | None, Query(ge=1, description="only so many probabilities")] = None,
        mode: Annotated[
            Literal["steady", "mean", "sampled"] | None,
            Query(
                description="answers at the mean with draws for how far classifiers disagree, at the mean without "
                "draws, or all from the draws; none is random"
            ),
        ] = None,
        samples: Annotated[
            bool, Query(description="also the probabilities under each drawn classifier")
        ] = False,
        nearest: Annotated[
            bool, Query(description="also training images of that class, where the model keeps some")
        ] = False,
    ) -> None:
        raise AssertionError("described here, answered by the service itself")

    @app.get("/model", summary="What the model is, and what the server takes", response_model=ModelFacts)
    async def model() -> Response:
        kept = 0 if service.shower is None else service.shower.images
        return as_json(facts_of(service.predictors, service.limits, __version__, kept))

    @app.get("/health", summary="Whether the server is there", response_model=State)
    async def health() -> None:
        raise AssertionError("described here, answered below")

    @app.get(
        "/ready",
        summary="Whether the server takes images",
        response_model=State,
        responses={503: {"model": Problem, "description": "It would not answer an image now"}},
    )
    async def ready() -> None:
        raise AssertionError("described here, answered below")

    @app.get("/metrics", summary="Numbers for Prometheus", response_model=None)
    async def metrics() -> Response:
        content, kind = service.metrics.text()
        return Response(content, media_type=kind)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return as_json(app.openapi())

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return as_json(refusal.problem, refusal.status, dict(refusal.headers))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return as_json(our_fault().problem, our_fault().status)  # the guard gets the error too, and logs it

    @app.exception_handler(RequestValidationError)
    async def unknown_option(request: Request, error: RequestValidationError) -> Response:
        wrong = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
        return as_json(Problem(f"an option is wrong ({wrong})", "See /openapi.json for what there is."), 422)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        said = HTTPStatus(error.status_code).phrase.lower()
        what = f"{request.method} {request.url.path[:80]}: {said}"
        return as_json(
            Problem(what, "See /openapi.json for what there is."), error.status_code, error.headers
        )

    fixed = {
        path: Fixed(files("metavib.serving.http").joinpath("page", name).read_bytes(), kind)
        for path, (name, kind) in PAGE.items()
    } | {"/health": Fixed(json_of(State("ok")))}
    ready_now = Fixed(json_of(State("ready")))

    async def routes(scope: Scope, receive: Receive, send: Send) -> None:
        # FastAPI's way to a function takes several times as long as all that the function does.
        path, method = scope.get("path"), scope.get("method")
        if method == "POST" and path == PREDICT:
            await service.respond(scope, receive, send)
        elif method == "GET" and path in fixed:
            await fixed[path].send(send)
        elif method == "GET" and path == "/ready":
            await service.check_ready()
            await ready_now.send(send)
        elif scope["type"] == "http":
            # One in each turn of the event loop, whoever asks: predictions must not wait for these.
            said: list[Any] = []

            async def keep(message: Any) -> None:
                said.append(message)

            async with service.turn:
                await app(scope, receive, keep)
            for message in said:
                await send(message)
        else:
            await app(scope, receive, send)

    return Guard(routes, access, service.metrics)
