"""What is stored as a sink's progress is true, whatever it reads, a destination refuses, or a start changes.

Nothing counts as applied that wasn't, and the watermark is beyond nothing of a topic that isn't named beside it.
"""

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.errors import Unavailable
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.offsets import Offsets
from jobs.query.progress import ProgressKeeper
from sinks.contract import Progress
from sinks.memory import open_memory
from sinks.stored_progress import behind_the_watermark
from tests.examples import examples
from tests.generations import prepared_store
from tests.keepers import keeper_of, log_of

TOPICS = ("p.public.a", "p.public.b", "p.public.c")

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "recover", "learn", "apply", "catch up", "refuse", "release", "restart"]),
        st.sampled_from(TOPICS),
        st.integers(0, 4),
    ),
    min_size=10,
    max_size=60,
)


class _Model:
    """A log, a destination, and the job between them."""

    def __init__(self) -> None:
        self._store = prepared_store(1)
        self._refuses = False
        self._ends = dict.fromkeys(TOPICS, 0)
        self._published: list[ProgressRecord] = []
        self._learned = 0
        self._applied: Offsets = {}
        # What was stored last, and the topics that were read then.
        self._told: Progress | None = None
        self._told_of: Collection[str] = ()
        self.keeper = self._started(TOPICS)

    @property
    def stored(self) -> Progress | None:
        return open_memory(self._store).generations.load_progress()

    def step(self, step: str, topic: str, count: int) -> None:
        match step:
            case "publish" | "recover":
                self._publish(topic, count, is_recovered=step == "recover")
            case "refuse":
                self._refuses = not self._refuses
            case "release":
                self.keeper.release_watermark()
                self._held_at = self._held_at if self._is_paused else None
            case "restart":
                # What it knew is gone, and it may read other topics.
                read = [each for each in TOPICS if each != topic or count < 2]
                self.keeper = self._started(read, is_paused=count == 4, lacks_columns=count == 1)
            case _:
                self._work(step, topic, count)
        self._check()

    def end(self) -> ProgressRecord:
        """The destination answers, and all is read. The newest record is returned."""
        self._refuses = False
        self.keeper = self._started(TOPICS)
        for topic in TOPICS:
            self._apply(topic, self._ends[topic])
        self.step("publish", TOPICS[0], 0)
        self.step("learn", TOPICS[0], 0)
        return self._published[-1]

    def _publish(self, topic: str, count: int, *, is_recovered: bool) -> None:
        self._ends[topic] += count
        last = self._published[-1] if self._published else ProgressRecord(0, 0, {})
        lsn = 10 if is_recovered else last.lsn + 10
        bounds = {each: (end,) for each, end in self._ends.items()}
        self._published.append(ProgressRecord(lsn, lsn, bounds, epoch=last.epoch + is_recovered))

    def _work(self, step: str, topic: str, count: int) -> None:
        try:
            if step == "catch up":
                for each in self._read:
                    self._apply(each, self._ends[each])
            if step == "apply" and topic in self._read:
                # What a job has applied that was killed comes again.
                begin = 0 if self.stored is None else self.stored.next_offsets.get((topic, 0), 0)
                self._apply(topic, min(self._ends[topic], max(0, begin - 1) + count))
            else:
                new, self._learned = self._published[self._learned :], len(self._published)
                self.keeper.learn(new)
        except Unavailable:
            assert self._refuses

    def _apply(self, topic: str, end: int) -> None:
        self._applied[topic, 0] = max(end, self._applied.get((topic, 0), 0))
        self.keeper.batch_applied({(topic, 0): end}, rejected=0)

    def _started(
        self, topics: Collection[str], *, is_paused: bool = False, lacks_columns: bool = False
    ) -> ProgressKeeper:
        self._read = topics
        known = self.stored or Progress({}, 0, 0, 0, {})
        holds = lacks_columns or (is_paused and len(topics) < len(TOPICS))
        self._held_at = (known.epoch, known.watermark_lsn) if holds else None
        self._is_paused = is_paused
        # As its reader has it: the newest record first, with the bounds of all before.
        self._learned = max(0, len(self._published) - 1)
        paused = set(TOPICS).difference(topics) if is_paused else set[str]()
        return keeper_of(
            open_memory(self._store).generations,
            log_of(*topics),
            self.stored,
            check_claim=self._answer,
            lacks_columns=lacks_columns,
            held_tables={topic: HeldTable(HeldState.PAUSED, 5) for topic in paused},
        )

    def _answer(self) -> None:
        if self._refuses:
            raise Unavailable("the server is away")

    def _check(self) -> None:
        stored = self.stored
        if stored != self._told:
            self._told, self._told_of = stored, self._read
        if stored is None:
            return
        if self._held_at is not None:
            assert (stored.epoch, stored.watermark_lsn) == self._held_at
        assert all(self._applied.get(at, 0) >= end for at, end in stored.next_offsets.items())
        reached = stored.epoch, stored.watermark_lsn
        below = [record for record in self._published if (record.epoch, record.lsn) <= reached]
        told_of = {*self._told_of, *(topic for topic, _ in stored.next_offsets)}
        for topic in told_of - behind_the_watermark(stored):
            for record in below if stored.watermark_lsn else []:
                assert stored.next_offsets.get((topic, 0), 0) >= record.bounds[topic][0]


@settings(max_examples=examples(300))
@given(STEPS)
def test_what_is_stored_is_true_and_in_the_end_it_is_all(steps: list[tuple[str, str, int]]) -> None:
    model = _Model()
    for step in steps:
        model.step(*step)
    newest, stored = model.end(), model.stored
    assert stored is not None
    assert (stored.epoch, stored.watermark_lsn) == (newest.epoch, newest.lsn)
    assert not behind_the_watermark(stored)
    assert model.keeper.learn([]) is None
