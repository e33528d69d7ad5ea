"""create_app: the FastAPI application for one engine. No module state: two apps can live in one process."""

import functools
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

from palladio.http.anthropic.routes_messages import messages_router
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.batch_worker import BatchWorker
from palladio.http.batches.routes_batches import batches_router
from palladio.http.files.file_store import FileStore
from palladio.http.files.routes_files import files_router
from palladio.http.generation.context import Context
from palladio.http.middleware import Admission, BodyLimit, CountRequests, RequestMiddleware
from palladio.http.observability.dashboard.sampler import Sampler
from palladio.http.observability.observer import Observer
from palladio.http.observability.records.spans import Spans
from palladio.http.ollama.routes_ollama import ollama_router
from palladio.http.pages.routes_pages import page_paths, pages_router
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import TextEncoder
from palladio.http.responses.background_responses import BackgroundResponses
from palladio.http.responses.response_store import ResponseStore
from palladio.http.responses.routes_responses import responses_router
from palladio.http.responses.unfinished_responses import UnfinishedResponses
from palladio.http.routes.routes_admin import admin_router
from palladio.http.routes.routes_capabilities import capabilities_router
from palladio.http.routes.routes_chat import CHAT, stored_router
from palladio.http.routes.routes_chat_batch import BATCH_CHAT
from palladio.http.routes.routes_classify import CLASSIFY, NATIVE_CLASSIFY
from palladio.http.routes.routes_completions import COMPLETIONS
from palladio.http.routes.routes_dashboard import dashboard_router
from palladio.http.routes.routes_embeddings import EMBEDDINGS, ENCODE
from palladio.http.routes.routes_generate import GENERATE
from palladio.http.routes.routes_invocations import invocations_router
from palladio.http.routes.routes_llama_cpp import APPLY_TEMPLATE, llama_cpp_router
from palladio.http.routes.routes_load import load_router
from palladio.http.routes.routes_model_control import model_control_router
from palladio.http.routes.routes_models import models_router
from palladio.http.routes.routes_observe import observe_router
from palladio.http.routes.routes_pooling import COHERE_EMBED, POOLING
from palladio.http.routes.routes_process import process_router
from palladio.http.routes.routes_reasoning import reasoning_router
from palladio.http.routes.routes_render import RENDER_CHAT, RENDER_COMPLETION
from palladio.http.routes.routes_scores import PAIR_ENDPOINTS, RERANK
from palladio.http.routes.routes_text_embeddings import TEXT_EMBEDDINGS
from palladio.http.routes.routes_tokenize import tokenize_router
from palladio.http.routes.routes_tools import tools_router
from palladio.http.routes.routes_vllm_control import vllm_control_router
from palladio.http.security.access import browser_guard, cors, describe_access
from palladio.http.security.callers import OPEN_PATHS, Caller, Callers, KeyAuth
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.settings.rules import require
from palladio.http.storage.blobs.blob_bucket import open_bucket
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.errors import install_error_handlers
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.version import __version__

SHOWN_BATCHES = 20  # of the dashboard
HEAD_PATHS = OPEN_PATHS | {"/v1/models", "/", "/api/tags", "/api/version"}  # what load balancers and launch scripts ask


def create_app(
    engine: EngineClient,
    config: HttpConfig,
    observability: ObservabilityConfig = ObservabilityConfig(),
    observer: Observer | None = None,
    storage: Storage | None = None,
) -> FastAPI:
    """Builds the application. The engine may still be starting: until it is ready, routes answer 503.

    The caller logs `app.state.access`, a line that says who may use the server, and what
    `app.state.template_warnings` returns, once the engine is ready. It closes `app.state.template_readers` at the end.

    Args:
        observer: default: what `observability` says.
        storage: default: a temporary one.

    Raises:
        ConfigError: --chat-template or --api-key-file cannot be read, an API key has two owners, --log-requests-target
            cannot be written, or --enable-trace lacks its packages.
    """
    if observer is None:
        observer = create_observer(engine, config, observability)
    callers = Callers.of(config)
    storage = storage or Storage.temporary()
    observer.metrics.follow_database(storage.database.failures)
    context = Context(
        engine,
        config,
        ChatTemplate(config),
        TextEncoder(engine, bounded=True),
        observability,
        observer,
        storage,
        callers,
    )
    middleware = [
        Middleware(RequestMiddleware, note=observer.errors.note_answer, root_path=config.root_path),
        Middleware(CountRequests, metrics=observer.metrics),
        cors(config, callers),
        Middleware(Admission),
        *browser_guard(config, callers),
        Middleware(KeyAuth, callers=callers, open_paths=OPEN_PATHS | page_paths(config)),
        Middleware(BodyLimit, limits=context.limits, read_timeout=config.request_read_timeout),
    ]
    app = FastAPI(title="Palladio", version=__version__, middleware=middleware, docs_url=None, redoc_url=None)
    install_error_handlers(app, observer.errors.note_answer)
    of_prompts = (CHAT, RENDER_CHAT, BATCH_CHAT, APPLY_TEMPLATE, COMPLETIONS, RENDER_COMPLETION, GENERATE)
    of_texts = (EMBEDDINGS, ENCODE, POOLING, COHERE_EMBED, *PAIR_ENDPOINTS, CLASSIFY, NATIVE_CLASSIFY)
    for endpoint in (*of_prompts, *of_texts, *TEXT_EMBEDDINGS):
        endpoint.add_to(app.router, context)
    for endpoint in (GENERATE, ENCODE, RERANK, NATIVE_CLASSIFY):
        endpoint.add_to(app.router, context, by_put=True)
    routers = (models_router, tokenize_router, admin_router, reasoning_router, tools_router, stored_router)
    others = (capabilities_router, observe_router, messages_router, ollama_router, load_router, invocations_router)
    controls = (model_control_router, vllm_control_router, process_router)
    for router in (*routers, *others, *controls, llama_cpp_router):
        app.include_router(_with_heads(router(context)))
    app.include_router(_with_heads(pages_router(config)))
    _add_responses(app, context)
    batches = _add_batches(app, context)
    _add_dashboard(app, context, batches)
    app.state.template_readers = context.template_readers
    app.state.template_warnings = lambda: context.facts.template_warnings
    app.state.access = describe_access(config, callers)
    return app


def _with_heads(router: APIRouter) -> APIRouter:
    """Adds HEAD to probes, which some load balancers send. FastAPI, other than Starlette, answers it with a 405."""
    for route in list(router.routes):
        if isinstance(route, APIRoute) and route.path in HEAD_PATHS and route.methods == {"GET"}:
            router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False, response_model=None
            )
    return router


def _add_responses(app: FastAPI, context: Context) -> None:
    """Add /v1/responses. The server starts and stops `app.state.unfinished_responses`, an UnfinishedResponses."""
    store = ResponseStore(context.storage.database, context.config.max_stored_responses)
    background = BackgroundResponses(context.engine, store, context.storage.database)
    unfinished = app.state.unfinished_responses = UnfinishedResponses(context, store, background)
    app.include_router(responses_router(context, store, background, unfinished))


def _add_batches(app: FastAPI, context: Context) -> BatchStore:
    """Add files and batches. The server calls `check` of `app.state.files`, a FileStore, and starts and stops
    `app.state.batch_worker`, a BatchWorker."""
    storage = context.storage
    files, batches = FileStore(storage.database, storage.blobs), BatchStore(storage.database)
    app.state.files = files
    worker = app.state.batch_worker = BatchWorker(context, files, batches)
    app.include_router(files_router(context, files))
    app.include_router(batches_router(batches, worker))
    return batches


def _add_dashboard(app: FastAPI, context: Context, batches: BatchStore) -> None:
    """Add the dashboard. The server starts and stops `app.state.sampler`, which is None with --no-ui."""
    app.state.sampler = sampler = Sampler(context.engine, context.observer) if context.config.ui else None
    if sampler is None:
        return

    async def latest(caller: Caller) -> list[dict[str, Any]]:
        return [batch.as_dict() for batch in await batches.page(caller, after=None, limit=SHOWN_BATCHES)]

    app.include_router(dashboard_router(context, sampler, latest))


def open_storage(config: HttpConfig) -> Storage:
    """
    Raises:
        ConfigError: --file-storage-path cannot be written, or another server uses it; --database-url cannot be used;
            --blob-store has no such folder for its database, or lacks its package.
    """
    url = config.blob_store
    if config.file_storage_path is None:
        is_local = url is None
        require(is_local, "--blob-store needs --file-storage-path: a database that stays has to know what is in there")
        is_own = config.database_url is None
        require(is_own, "--database-url needs --file-storage-path: a directory that all its servers see")
        return Storage.temporary()
    bucket = None if url is None else functools.partial(open_bucket, url, config.max_file_bytes)
    given = config.database_url
    shared = None
    if given is not None:
        shared = SharedDatabase(SecretUrl(given), config.database_connections, config.database_lease)
    return Storage(Path(config.file_storage_path).expanduser(), bucket=bucket, shared=shared)


def create_observer(engine: EngineClient, config: HttpConfig, observability: ObservabilityConfig) -> Observer:
    """Make the observer that `observability` asks for; the caller closes it.

    Raises:
        ConfigError: as `create_app`.
    """
    spans = None
    if observability.enable_trace:
        names = config.served_model_name or (engine.config.source.model_path,)
        spans = Spans.connect(observability.otlp_traces_endpoint, names[0])
    return Observer(observability, spans)
