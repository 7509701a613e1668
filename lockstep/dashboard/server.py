"""The dashboard's HTTP: the page's files, the API, and the state as server-sent events."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.lsn import parse_lsn
from cdc.postgres.dsn import parse_dsn
from lockstep.config import Config, read
from lockstep.dashboard import model
from lockstep.dashboard.access import Access, Guard
from lockstep.dashboard.captured_tables import CapturedTables
from lockstep.dashboard.documents import STANDS_STILL, Subject, verified
from lockstep.dashboard.memory import bound_areas
from lockstep.dashboard.questions import Questions
from lockstep.dashboard.sampler import Log, Sampler, now_ms
from lockstep.dashboard.tail import FOLLOWERS_MAX, Places, Wanted, follow
from lockstep.dashboard.view_changes import ViewChanges
from lockstep.dashboard_settings import TOKEN_VARIABLE, DashboardSettings
from lockstep.extension import panels_now
from lockstep.watcher import Watcher, open_watcher
from monitor import bounded_http
from monitor.comparable_lsns import Line
from monitor.metrics.definitions import Part
from monitor.metrics.endpoint import exposition
from monitor.metrics.meters import Gauges
from monitor.metrics.pipeline import gauges_of
from monitor.waits import Waits

logger = logging.getLogger("lockstep.dashboard")

STATIC: Final = Path(__file__).parent / "static"
STREAMS_MAX: Final = 200
_FRESH_S: Final = 15.0
"""A look may wait for a server that hangs. After this long without a look, nobody knows how the pipeline is."""

_FILE_EVERY_S: Final = 1.0
_TAIL_QUEUE: Final = 500
_SET_TOPIC: Final = "set `topic = true` in its section, and start `lockstep apply` again"
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": model.Refusal, "description": what}
    for code, what in (
        (400, "The request is wrong."),
        (401, "It needs the token."),
        (403, "It comes from elsewhere."),
        (409, "It can't be done now."),
        (411, "Its length isn't said."),
        (413, "It is too long."),
        (422, "A value isn't of the kind that is asked for."),
        (503, "A server doesn't answer."),
    )
}
_METRICS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


class Ending(Enum):
    """Why a server ends by itself. ``CHANGED``: its configuration has, so all of its parts must be made anew."""

    FAILED = auto()
    CHANGED = auto()


@dataclass(frozen=True, slots=True)
class ExtraPage:
    """A page that another program serves beside the dashboard's own. ``add`` adds the routes at and below its address.
    ``module`` is the program to start again, with ``--config``."""

    address: str
    add: Callable[[FastAPI], object]
    module: str


class EventStreams:
    """Gives every reader the newest state. A slow reader misses states: none waits in a queue."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._frame: bytes | None = None
        self._count = 0
        self._on_reader: Callable[[], object] = lambda: None
        self.readers = 0
        self.is_closed = False

    def open(self, on_reader: Callable[[], object]) -> None:
        """Called in the serving loop. ``on_reader`` is called when a reader comes."""
        self._loop = asyncio.get_running_loop()
        self._on_reader = on_reader

    def publish(self, state: model.PipelineState) -> None:
        """Called in any thread."""
        text = state.model_dump_json().encode()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._set, text)

    def close_soon(self) -> None:
        """The same as ``close``, for any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End every stream. Called in the loop."""
        self.is_closed = True
        self._news.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """The newest state at once, then each new one, until the server ends."""
        self.readers += 1
        self._on_reader()
        sent = 0
        try:
            yield b"retry: 2000\n\n"
            while not self.is_closed:
                if self._frame is not None and sent != self._count:
                    sent = self._count
                    yield self._frame
                    continue
                await self._news.wait()
        finally:
            self.readers -= 1

    def _set(self, text: bytes) -> None:
        self._count += 1
        self._frame = b"event: state\nid: %d\ndata: %b\n\n" % (self._count, text)
        news, self._news = self._news, asyncio.Event()
        if self.is_closed:
            self._news.set()
        news.set()


def subject_of(config: Config) -> Subject:
    """The pipeline by its configuration. Holds no secret."""
    source = parse_dsn(config.source.dsn)
    host, port = source.get("host", "local socket"), source.get("port", "5432")
    return Subject(
        pipeline=config.pipeline.name,
        version=version("lockstep"),
        server=f"{host}:{port}",
        database=source.get("dbname") or source.get("user"),
        slot=config.slot,
        topics=len(config.topics()) if config.source.is_resolved else None,
        kinds={name: sink.type for name, sink in config.sinks.items()},
    )


def look_once(config: Config) -> model.PipelineState:
    """What the first screen shows, without a server."""
    panels = panels_now(config)
    return Sampler(config, subject_of(config), Log(), panels=lambda: panels).look_once()


def dashboard_app(
    config: Config,
    path: Path,
    access: Access,
    streams: EventStreams,
    end: Callable[[Ending], object],
    extra: ExtraPage | None = None,
) -> Guard:
    """The application behind its guard. It looks at the pipeline while it is served. ``end`` is called, in any thread,
    if the process has to end."""
    log = Log()
    closing = contextlib.ExitStack()
    watcher = closing.enter_context(open_watcher(config))
    sampler = Sampler(
        config,
        subject_of(config),
        log,
        open_alerts=lambda: len(watcher.open),
        panels=lambda: watcher.panels,
        is_watched=lambda: streams.readers > 0,
    )
    questions = Questions(config, path, sampler)
    tables = sampler.tables
    changes = ViewChanges(
        config.kafka, config.pipeline.name, live=sampler.live_generation, is_closed=lambda: streams.is_closed
    )
    waits = Waits(config.as_pipeline(), config.sinks, line=lambda: Line(tables.config().as_pipeline()))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        streams.open(sampler.look_soon)
        sampler.start(streams.publish, watcher.look, lambda: end(Ending.FAILED))
        watching = asyncio.create_task(_until_changed(config, path, lambda: end(Ending.CHANGED)))
        yield
        watching.cancel()
        waits.close()
        changes.close()
        sampler.stop()
        questions.close()
        closing.close()

    app = _empty_app(lifespan)
    _add_looks(app, sampler, questions, streams, watcher)
    _add_answers(app, sampler, questions, log, watcher)
    _add_wait(app, config, waits)
    _add_tail(app, tables, questions, streams)
    _add_views(app, config, changes)
    if extra is None:
        return Guard(app, access)
    extra.add(app)
    return Guard(app, replace(access, page=extra.address))


async def _until_changed(config: Config, path: Path, tell: Callable[[], object]) -> None:
    """Call ``tell`` once the file has another configuration with which a server could start."""
    file = ConfigurationFile(path, config)
    while not file.has_changed():
        await asyncio.sleep(_FILE_EVERY_S)
    tell()


class ConfigurationFile:
    def __init__(self, path: Path, config: Config) -> None:
        """``config`` is what was read from there."""
        self._path = path
        self._config = config
        self._seen: tuple[int, ...] = ()
        self._is_other = False

    def has_changed(self) -> bool:
        """Whether the file has another configuration now, and a server could start with it. Asks no other server."""
        seen = self._signs()
        if seen != self._seen:
            self._seen = seen
            try:
                config = read(self._path)
                access_of(config, os.environ.get(TOKEN_VARIABLE))
                self._is_other = config != self._config
            except LockstepError as error:  # it may be half written: then its author writes again
                self._is_other = False
                logger.info("the configuration file has changed, and isn't taken up as it is: %s", error.message)
        return self._is_other

    def _signs(self) -> tuple[int, ...]:
        """Differs after a change; constant while the file doesn't exist."""
        try:
            status = self._path.stat()
        except OSError:
            return (0,)
        return status.st_ino, status.st_mtime_ns, status.st_size


def _empty_app(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """An application with the page's files, which reports errors."""
    app = FastAPI(
        title="Lockstep dashboard",
        description="The output of `lockstep lag` and related commands, as JSON.",
        version=version("lockstep"),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses=_REFUSALS,
    )

    @app.exception_handler(LockstepError)
    async def tell(_: Request, error: LockstepError) -> Response:
        code = 400 if isinstance(error, ConfigurationError) else 503 if isinstance(error, Unavailable) else 409
        return _refusal(code, _sentence(error))

    @app.exception_handler(HTTPException)
    async def refuse_http(_: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(_: Request, error: RequestValidationError) -> Response:
        # Where and what, but not the value, which may be a row's.
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return _refusal(422, "; ".join(problems)[:1000])

    @app.exception_handler(Exception)
    async def refuse_bug(_: Request, __: Exception) -> Response:
        return _refusal(500, "The dashboard failed to answer, and its log says why.")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _add_looks(
    app: FastAPI,
    sampler: Sampler,
    questions: Questions,
    streams: EventStreams,
    watcher: Watcher,
) -> None:
    @app.get("/healthz")
    async def healthz() -> model.Health:
        """Whether the process lives."""
        return model.Health(ready=True, message="The dashboard's process lives.")

    @app.get("/readyz", responses={503: {"model": model.Health}})
    async def readyz() -> Response:
        """Whether the last look is fresh, and every part of the pipeline is at work and answers."""
        health = health_of(sampler.state, now_ms())
        return _json(health, 200 if health.ready else 503)

    @app.get("/metrics", response_class=Response, responses=_METRICS)
    async def metrics() -> Response:
        """The last look for Prometheus. A figure is absent if its server didn't answer."""
        state, report = sampler.state, sampler.report
        gauges = Gauges(Part.DASHBOARD)
        if state is not None and report is not None:
            gauges = gauges_of(report, now_s=state.sampled_ms / 1000)
        for each in watcher.open:
            gauges.set("lockstep_condition", 1, each.name, each.subject, each.severity.label)
        for figure in watcher.figures:
            gauges.add(figure.definition, figure.value, *figure.labels)
        return Response(exposition(gauges), media_type=CONTENT_TYPE_LATEST)

    @app.get("/api/pipeline")
    async def pipeline() -> model.PipelineState:
        """The first screen."""
        return questions.state()

    @app.get("/api/lag")
    async def lag() -> dict[str, Any]:
        """The document of `lockstep lag --json`, as of the last look."""
        questions.state()
        if not sampler.lag:
            raise Unavailable("the last look got no answer", hint="`/api/pipeline` says why")
        return sampler.lag

    @app.get("/api/events", response_class=StreamingResponse, responses=_EVENTS)
    async def events() -> Response:
        """The document of `/api/pipeline`, at once and after each look. Each is whole, so a reader may miss some."""
        if streams.readers >= STREAMS_MAX:
            raise Unavailable(f"{STREAMS_MAX} pages look at the pipeline already")
        return StreamingResponse(streams.frames(), media_type="text/event-stream")


def health_of(state: model.PipelineState | None, at_ms: int) -> model.Health:
    """The health by the last look. It names nothing, since everybody may ask. Pure."""
    if state is None:
        return model.Health(ready=False, message="The first look isn't over.")
    age_s = (at_ms - state.sampled_ms) / 1000
    if age_s > _FRESH_S:
        return model.Health(ready=False, message=f"The last look is {age_s:.0f} s old.")
    still = sum(problem.state in STANDS_STILL for problem in state.problems)
    if still:
        return model.Health(ready=False, message=f"Of the pipeline's parts, {still} don't go on or don't answer.")
    building = sum(sink.view is not None and sink.view.building is not None for sink in state.sinks)
    building_text = f" Views that are being built: {building}." if building else ""
    return model.Health(ready=True, message=f"Every part of the pipeline goes on.{building_text}")


def _add_wait(app: FastAPI, config: Config, waits: Waits) -> None:
    @app.post("/api/wait")
    async def wait(body: model.ToWaitFor) -> model.Waited:
        """Answers once readers of the sinks see everything committed up to the LSN, or when the time is over."""
        try:
            lsn = parse_lsn(body.lsn)
        except ValueError:
            raise ConfigurationError("lsn isn't one of PostgreSQL's", hint="it looks like 0/16B3748") from None
        config.chosen_sinks(body.sinks)
        waited = await waits.wait_async(lsn, body.sinks, timeout_s=body.timeout_s)
        return model.Waited.model_validate(waited.to_json())


def _add_answers(app: FastAPI, sampler: Sampler, questions: Questions, log: Log, watcher: Watcher) -> None:
    @app.get("/api/findings")
    def findings() -> model.Findings:
        """The findings of `lockstep doctor`, at most half a minute old."""
        return questions.findings()

    @app.get("/api/tables")
    def tables() -> model.Tables:
        """All captured tables."""
        return questions.tables()

    @app.get("/api/schemas")
    def schemas(table: Annotated[str, Query(max_length=200)]) -> model.Schemas:
        """The shapes that a table has had."""
        return questions.schemas(table)

    @app.get("/api/sinks/{name}")
    def sink(name: str) -> model.SinkDetail:
        """A sink with its last hour."""
        return questions.sink_detail(name)

    @app.get("/api/copies")
    def copies() -> model.Copies:
        """How far copies of tables and builds of generations are."""
        return questions.copies()

    @app.get("/api/key")
    def key(
        table: Annotated[str, Query(max_length=200)], key: Annotated[str, Query(min_length=1, max_length=2000)]
    ) -> model.FollowedKey:
        """One row at the source, on its topic and in every sink. The answer has its values."""
        # Code that compares rows takes memory, and few ask.
        from lockstep.dashboard.follow_key import follow_key

        return follow_key(sampler.tables.config(), questions.table(table), key)

    @app.get("/api/rejections")
    def rejections() -> model.Rejections:
        """The open rejections by reason."""
        return questions.rejections()

    @app.get("/api/verify")
    async def verify() -> model.Comparisons:
        """The last comparison of each sink."""
        return verified(sampler.lag)

    @app.get("/api/alerts")
    async def alerts() -> model.Alerts:
        """The open conditions, and the changes since the server started."""
        open_now = tuple(
            model.OpenCondition(
                condition=one.name, where=one.subject, since_ms=one.since_ms, message=f"{one.sentence} {one.step}"
            )
            for one in watcher.open
        )
        return model.Alerts(open=open_now, log=log.newest())


def _add_tail(app: FastAPI, tables: CapturedTables, questions: Questions, streams: EventStreams) -> None:
    places = Places()

    @app.get("/api/tail", response_class=StreamingResponse, responses=_EVENTS)
    async def tail(
        table: Annotated[str, Query(max_length=200)] = "",
        key: Annotated[str, Query(max_length=500)] = "",
        op: Annotated[str, Query(pattern="^[crudt]?$")] = "",
    ) -> Response:
        """Events as they arrive, without their rows. A slow reader misses events.

        Where they can't come any more, the last one is `trouble`, and its document says why.
        """
        wanted = Wanted(questions.table(table) if table else None, key, op)
        if not places.take():
            raise Unavailable(f"{FOLLOWERS_MAX} pages follow events already")
        frames = _tailed(tables, wanted, streams, places)
        return StreamingResponse(frames, media_type="text/event-stream")


async def _tailed(
    tables: CapturedTables, wanted: Wanted, streams: EventStreams, places: Places
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(_TAIL_QUEUE)
    gone = threading.Event()

    def offer(frame: bytes | None) -> None:
        if frame is None and waiting.full():
            waiting.get_nowait()
        with contextlib.suppress(asyncio.QueueFull):
            waiting.put_nowait(frame)

    def send(name: bytes, document: BaseModel) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(offer, b"event: %b\ndata: %b\n\n" % (name, document.model_dump_json().encode()))

    def work() -> None:
        try:
            for event in follow(tables.config(), wanted, lambda: gone.is_set() or streams.is_closed):
                send(b"event", event)
        except LockstepError as error:
            logger.info("tail ended: %s", error.message)
            send(b"trouble", model.Refusal(message=_sentence(error)))
        except Exception:
            logger.exception("tail ended by a bug")
            send(b"trouble", model.Refusal(message="The dashboard failed to follow the events, and its log says why."))
        finally:
            places.give_back()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(offer, None)

    threading.Thread(target=work, name="tail", daemon=True).start()
    try:
        yield b": it begins\n\n"
        while not streams.is_closed:
            try:
                frame = await asyncio.wait_for(waiting.get(), 0.5)
            except TimeoutError:
                continue
            if frame is None:
                return
            yield frame
    finally:
        gone.set()


def _add_views(app: FastAPI, config: Config, changes: ViewChanges) -> None:
    @app.get("/views/{name}/changes", response_class=StreamingResponse, responses=_EVENTS)
    async def view_changes(
        name: str, request: Request, last_event_id: Annotated[str | None, Header(max_length=200)] = None
    ) -> Response:
        """The rows of a view, then its changes, in whole transactions. Each column of its key may be a filter.

        `waiting` says why nothing comes yet, as before a generation of the view is live.
        `reset` says that all rows follow. Each is a `row`, and `synced` says as of which LSN they are. Then come
        `upsert` and `delete`, and `commit` says that the rows are those of its LSN. Where nothing can come any more,
        the last one is `trouble`. A reader that comes back with `Last-Event-ID` gets what it lacks.
        """
        settings = config.sinks.get(name)
        if name in config.added_stores:
            raise config.not_found("view", name)
        if settings is None or settings.view is None:
            raise ConfigurationError("there is no such view", hint="`lockstep.toml` names those that there are")
        if not settings.topic:
            raise LockstepError("the view has no topic, from which its changes would be read", hint=_SET_TOPIC)
        wanted = dict(request.query_params)
        unknown = sorted(set(wanted) - set(settings.view.key))
        if unknown or len(wanted) != len(request.query_params.multi_items()):
            raise ConfigurationError(
                "a filter isn't one of the view's key", hint=f"its columns, once each: {', '.join(settings.view.key)}"
            )
        frames = changes.follow(name, settings.view.key, wanted, last_event_id)
        return StreamingResponse(frames, media_type="text/event-stream")


def _sentence(error: LockstepError) -> str:
    return error.message.rstrip(".") + "." + ("" if error.hint is None else f" {error.hint}")


def _json(document: BaseModel, code: int, headers: dict[str, str] | None = None) -> Response:
    return Response(document.model_dump_json(), code, headers, media_type="application/json")


def _refusal(code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json(model.Refusal(message=message), code, headers)


class _Server(uvicorn.Server):
    """Ends its streams when told to stop; uvicorn would wait for them. Ends with 0, like all our commands."""

    def __init__(self, settings: uvicorn.Config, streams: EventStreams) -> None:
        super().__init__(settings)
        self._streams = streams
        self._is_told_to_stop = False
        self._ending: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        """Why it ended by itself; None if it was told to."""
        return None if self._is_told_to_stop else self._ending

    def end(self, ending: Ending) -> None:
        """End in order. Called in any thread."""
        self._ending = self._ending or ending
        self._streams.close_soon()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Unlike uvicorn's, which would send itself the signal again at its end.
        self._is_told_to_stop = True
        self._streams.close()
        self.force_exit = self.should_exit
        self.should_exit = True


class _EndOfStreams(logging.Filter):
    """Drops the traceback of a request that was cut off at the server's end, which is no fault. uvicorn gives requests
    a moment to end. A reader that takes nothing keeps its stream longer, as does a busy machine."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not _is_cancelled(error)


def _is_cancelled(error: BaseException | None) -> bool:
    """Whether it was raised only because somebody cancelled the task."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancelled, error.exceptions))
    return isinstance(error, asyncio.CancelledError)


def access_of(config: Config, token: str | None) -> Access:
    """Raises ConfigurationError if other machines could get in without a token."""
    settings = config.dashboard
    settings.refuse_without_token(token)
    return Access(token or None, settings.host)


def serve(config: Config, path: Path, *, say: Callable[[str], object], extra: ExtraPage | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, and say where. Raises ConfigurationError for an address that can't be used.

    If the file gets another configuration, the process starts anew with it. Raises LockstepError if nothing would be
    looked at any more.
    """
    bound_areas()
    settings = config.dashboard
    access = access_of(config, os.environ.get(TOKEN_VARIABLE))
    streams = EventStreams()

    def end(ending: Ending) -> None:
        server.end(ending)

    with contextlib.closing(_listening(settings)) as listening:
        served = bounded_http.settings(dashboard_app(config, path, access, streams, end, extra))
        server = _Server(served, streams)
        logging.getLogger("uvicorn.error").addFilter(_EndOfStreams())
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        say(f"dashboard: http://{host}:{listening.getsockname()[1]}/")
        server.run(sockets=[listening])
    match server.ending:
        case Ending.FAILED:
            raise LockstepError("the pipeline isn't looked at any more", hint="the log says why: start it again")
        case Ending.CHANGED:
            logger.info("the configuration has changed, and the dashboard begins anew")
            # In place: whoever started this process needn't know.
            program = ["lockstep", "dashboard"] if extra is None else [extra.module]
            command = [sys.executable, "-m", *program, "--config", str(path)]
            os.execv(sys.executable, command)  # noqa: S606  our own words and a path


def _listening(settings: DashboardSettings) -> socket.socket:
    """A socket that has the address for itself. Raises ConfigurationError if it can't be used."""
    listening = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen()  # two sockets that only bind may both have it
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"the dashboard can't listen on {settings.listen}: {error.strerror}",
            hint="another process may have the port: set dashboard.listen",
        ) from error
    return listening
