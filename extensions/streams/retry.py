"""``lockstep rejections retry`` of a stream query: posts its rows to its webhook again, in the order of their refusal.

The query's job posts nothing meanwhile; otherwise it could post a newer row after this has looked for one. A rejection
is closed once its row is received, so an interrupted retry can be run again. Of each key, only the newest row of all
builds is posted, since any other would take the receiver back. Older rejections of the key are closed with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cdc.model.errors import ConfigurationError
from cdc.webhook import DocumentRefused, PerhapsRefused, Webhook
from extensions.streams.configured import queries_of
from extensions.streams.jobs.posted import posted_document, refused_row
from extensions.streams.jobs.posting_turn import PostingTurn, posting_turns
from extensions.streams.newer_builds import NewerBuilds
from extensions.streams.queries import stream_query_plan
from extensions.streams.settings import row_webhook
from extensions.streams.topic_names import is_stream_result_topic
from jobs.dead_letters.record import DeadLetter
from lockstep.added_stores import RetriedRows
from lockstep.config import Config
from lockstep.rejections.open_records import OpenRecords

_NO_ROW = "it is no row of a stream query; discard it"


def post_again(config: Config, name: str, chosen: Sequence[DeadLetter], *, say: Callable[[str], None]) -> RetriedRows:
    """Post the chosen rows to the query's webhook. Raises LockstepError."""
    settings = queries_of(config)[name].webhook
    if settings is None:
        raise ConfigurationError(
            f"stream query {name} has no webhook to post its rows to",
            hint=f"set stream_queries.{name}.webhook, or `lockstep rejections discard {name}` gives them up",
        )
    open_records = OpenRecords(config)
    posting = _Posting(config, name, open_records, chosen)
    turns = posting_turns(stream_query_plan(config, name), say=say)
    with row_webhook(name, settings) as webhook, turns as turn:
        for dead_letter, row in open_records.topic.values(posting.to_post):
            posting.post(dead_letter, row, webhook, turn)
    return posting.retried()


class _Posting:
    """The outcome of each chosen rejection, by the key of its record."""

    def __init__(self, config: Config, name: str, open_records: OpenRecords, chosen: Sequence[DeadLetter]) -> None:
        self._pipeline = config.pipeline.name
        self._name = name
        self._open_records = open_records
        self._chosen = chosen
        # A sink may have had this name before.
        is_row = partial(_is_row, self._pipeline)
        self._refused = {each.record_key: _NO_ROW for each in chosen if not is_row(each)}
        self._closed = set[bytes]()
        self._seen = set[bytes]()
        self._still_open = set[bytes]()
        self._of_key: dict[bytes, list[DeadLetter]] = {}
        for each in sorted(filter(is_row, open_records.read(name)[0]), key=lambda each: each.generation):
            self._of_key.setdefault(each.key, []).append(each)
        self.to_post: list[DeadLetter] = []
        for each in filter(is_row, chosen):
            newest = self._of_key.get(each.key, [each])[-1].generation
            if newest > each.generation:
                self._refused[each.record_key] = (
                    f"generation {newest} has a newer row of this key, which was refused too: retry that one"
                )
            else:
                self.to_post.append(each)
        self._newer = NewerBuilds(
            config.kafka.client(),
            self._pipeline,
            name,
            keys={each.key for each in self.to_post},
            generation=min((each.generation for each in self.to_post), default=0),
        )
        if self.to_post:
            self._newer.read()  # before the turn begins: topics may be long, and a turn is short

    def post(self, dead_letter: DeadLetter, row: bytes | None, webhook: Webhook, turn: PostingTurn) -> None:
        """Post a row whose rejection is still open, unless a newer build has another row of its key."""
        if row is not None:
            is_open, build = turn.looked(partial(self._look, dead_letter=dead_letter, row=row))
            if not is_open:
                return
        self._seen.add(dead_letter.record_key)
        if row is None:
            return
        if build is not None:
            self._refused[dead_letter.record_key] = (
                f"generation {build} has another row of this key, which its job posts"
            )
            return
        document = posted_document(
            pipeline=self._pipeline,
            query=self._name,
            generation=dead_letter.generation,
            key=dead_letter.key,
            row=row,
        )
        try:
            webhook.post(document)
        except (DocumentRefused, PerhapsRefused) as error:
            self._refused[dead_letter.record_key] = refused_row(error.answer)
            return
        same_key = self._of_key.get(dead_letter.key, ())
        received = [dead_letter, *(each for each in same_key if each.generation < dead_letter.generation)]
        self._open_records.close(received)
        self._closed |= {each.record_key for each in received}

    def _look(self, is_another: bool, dead_letter: DeadLetter, row: bytes) -> tuple[bool, int | None]:
        """Whether the rejection is still open, and which newer build has another row of its key."""
        if is_another:
            # Another `retry` may have posted it meanwhile, or `lockstep erase` may have removed it.
            self._still_open = {each.record_key for each in self._open_records.read(self._name)[0]}
        if dead_letter.record_key not in self._still_open:
            return False, None
        return True, self._newer.other_row_in(dead_letter.key, row, dead_letter.generation)

    def retried(self) -> RetriedRows:
        closed = [each for each in self._chosen if each.record_key in self._closed]
        unread = {each.record_key for each in self.to_post} - self._seen - self._closed
        refused = [
            replace(each, reason=self._refused.get(each.record_key, _NO_ROW))
            for each in self._chosen
            if each.record_key not in self._closed | unread
        ]
        return RetriedRows(len(closed), len(self._chosen) - len(closed) - len(refused), refused)


def _is_row(pipeline: str, dead_letter: DeadLetter) -> bool:
    return is_stream_result_topic(pipeline, dead_letter.position.topic)
