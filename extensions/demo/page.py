"""The demo's web page: the dashboard, and a timeline beside it; ``python -m extensions.demo.page --config <file>``. The
timeline is read live from the view's changes. The page writes only to PostgreSQL.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import psycopg
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Field

from cdc.model.errors import LockstepError
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.settings import SourceSettings
from extensions.demo import timeline
from extensions.demo.timeline import ADDRESS
from jobs.clock import now_ms
from lockstep.client.token import commit_token
from lockstep.config import read
from lockstep.console import log_to_stderr, say
from lockstep.dashboard.model import Document
from lockstep.dashboard.server import ExtraPage, serve

STATIC: Final = Path(__file__).parent / "static"
_MODULE: Final = "extensions.demo.page"

_Id = Annotated[int, Field(ge=1, lt=1 << 63)]


class Tweet(Document):
    """What a user says."""

    user: _Id
    body: str = Field(min_length=1, max_length=timeline.BODY_MAX, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")


class OneTweet(Document):
    """A tweet of this user."""

    user: _Id
    tweet: _Id


class Follow(Document):
    """Who follows, or doesn't any more, and whom."""

    user: _Id
    followee: _Id


class People(Document):
    """Everybody. ``visitor`` is shown at first. ``now_ms`` is the server's clock."""

    people: tuple[timeline.Person, ...]
    visitor: int
    now_ms: int


class Committed(Document):
    """What has been committed: readers have it when they are at this LSN, and perhaps earlier. ``committed_ms`` is the
    server's clock just after the commit. ``tweet`` is a new one's id.
    """

    lsn: str
    committed_ms: int
    tweet: int | None = None


def add_timeline(app: FastAPI, source: SourceSettings) -> None:
    """Add the page and its requests."""

    def write(statement: Callable[..., int | None], *values: Any, otherwise: str) -> tuple[int, Committed]:
        """Run a statement, and say when it was committed. Raises LockstepError(``otherwise``) if it changes nothing."""
        with _connected(source) as connection:
            done = statement(connection, *values)
            committed_ms = now_ms()
            if not done:
                raise LockstepError(otherwise)
            return done, Committed(lsn=commit_token(connection), committed_ms=committed_ms)

    @app.get(ADDRESS, include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "timeline.html", headers={"cache-control": "no-cache"})

    app.mount(f"{ADDRESS}/static", StaticFiles(directory=STATIC))

    @app.get(f"{ADDRESS}/people")
    def people(user: _Id = timeline.VISITOR) -> People:
        """Everybody, and whom this user follows."""
        with _connected(source) as connection:
            found = timeline.people(connection, user)
        return People(people=tuple(found), visitor=timeline.VISITOR, now_ms=now_ms())

    @app.post(f"{ADDRESS}/tweet")
    def send(body: Tweet) -> Committed:
        """Send a tweet."""
        tweet, committed = write(timeline.send_tweet, body.user, body.body, otherwise="there is no such user")
        return committed.model_copy(update={"tweet": tweet})

    @app.post(f"{ADDRESS}/delete")
    def delete(body: OneTweet) -> Committed:
        """Delete a tweet of one's own."""
        return write(timeline.delete_tweet, body.user, body.tweet, otherwise="this user has no such tweet any more")[1]

    @app.post(f"{ADDRESS}/follow")
    def follow(body: Follow) -> Committed:
        """Follow somebody."""
        otherwise = "this user follows them already, or one of both isn't there"
        return write(timeline.follow, body.user, body.followee, otherwise=otherwise)[1]

    @app.post(f"{ADDRESS}/unfollow")
    def unfollow(body: Follow) -> Committed:
        """Don't follow somebody any more."""
        return write(timeline.unfollow, body.user, body.followee, otherwise="this user doesn't follow them")[1]


@contextmanager
def _connected(source: SourceSettings) -> Iterator[psycopg.Connection[Any]]:
    """Raises as ``connect``, and PostgreSQL's errors as ours."""
    with connect(source, application="lockstep demo page") as connection:
        try:
            connection.execute("set search_path = public")  # as in applications
            yield connection
        except psycopg.Error as error:
            raise connection_error(error) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises as ``serve``."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description="the demo's web page")
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args(arguments).config.absolute()
    log_to_stderr()
    config = read(path)
    serve(config, path, say=say, extra=ExtraPage(ADDRESS, lambda app: add_timeline(app, config.source), _MODULE))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
