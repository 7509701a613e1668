"""Jobs that apply a log to one sink while everything happens to them that may: a scheduler, and what it expects.

Each step is one call of a job to its sink, so that jobs come between each other anywhere. ``Held`` says what the sink
must hold after it.

``python -m tests.contract.history_jobs <kind> --seed 1 --rounds 100 --stack <directory>`` runs rounds on servers that
are up there. A round is run again by its seed.
"""

import argparse
import random
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdc.model.errors import DataLost, Fenced
from cdc.model.table import quote_identifier
from cdc.protocol.control_records import ProgressRecord
from jobs.query.log_facts import LogFacts
from jobs.query.progress import ProgressKeeper
from jobs.query.resume_check import TopicFacts, check_resume
from jobs.query.start_position import moved_to
from sinks.contract import Batch, OpenedSink, Progress
from stack.stack import Stack
from tests.contract.copies import PutBack
from tests.contract.destinations import ITEMS, Destination, duckdb_history, opened_destination
from tests.contract.destinations import KINDS as ROW_KINDS
from tests.contract.histories import (
    ALL_PARTITIONS,
    PARTITIONS,
    TABLES,
    Held,
    Key,
    Log,
    Offsets,
    Record,
    Row,
    Source,
    Version,
    batch_of,
    partitions_of,
)
from tests.keepers import keeper_of

KINDS = (*ROW_KINDS, "duckdb-history")
"""Each layout too: which rows are lost or come twice depends on how they are stored."""

STEPS = 60

_WORDS = {"snapshot": "r", "insert": "c", "update": "u", "delete": "d"}
_TOPICS = {partitions_of(table.name)[0][0]: TopicFacts("id", PARTITIONS, 10**15) for table in TABLES}
_TABLE_OF = {partitions_of(table.name)[0][0]: table.name for table in TABLES}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class _Planned:
    """A batch of a job: its portions, of which some are done, and where it ends. ``is_doubtful``: the store was put
    back in the middle of it."""

    portions: list[tuple[list[Record], Offsets]]
    ends: Offsets
    done: int = 0
    is_doubtful: bool = False


@dataclass
class Process:
    """One process of a job. It may hang for any time, and then go on as if nothing had happened."""

    opened: OpenedSink
    fence: int
    keeper: ProgressKeeper
    overwrite_equal_tags: bool
    known: Progress | None
    learned: int = 0
    planned: _Planned | None = None
    past: list[_Planned] = field(default_factory=list)

    @property
    def reads_from(self) -> Offsets:
        return self.keeper.positions


@dataclass
class Job:
    """What outlives a job's processes: how it was started."""

    overwrite_equal_tags: bool = False
    process: Process | None = None


@dataclass
class _Copy:
    put_back: PutBack
    held: Held


class Run:
    """One history, and one sink of it."""

    def __init__(self, destination: Destination, name: str, seed: int, *, keeps_history: bool) -> None:
        self.picks = random.Random(seed)
        self.source = Source(self.picks)
        self.log: Log = self.source.log
        self.destination = destination
        self.name = name
        self.held = Held()
        self.keeps_history = keeps_history
        self.jobs = [Job(), Job()]
        self.hung: list[Process] = []
        self.copies: list[_Copy] = []
        self.in_bulk = False
        self.looking: OpenedSink = destination.opened(name)
        """A command that looks at the sink, not a job."""
        self.told: list[str] = []
        """What was done, to explain a failure."""
        self.counts = Counter[str]()

    def tell(self, what: str) -> None:
        self.told.append(what)
        self.counts[what.split(maxsplit=1)[0]] += 1

    # What may happen

    def run(self, steps: int, *, large: int = 0) -> None:
        """Run this many steps. Then both jobs read the log to its end, and late processes write once more. ``large`` is
        how many changes the first transaction has."""
        if large:
            self.source.change_often(large)
        if self.picks.random() < 0.4:
            self.begin_bulk()
        second = self.picks.choice((0, 2, 10))  # how often another job comes in between
        actions: list[tuple[int, Callable[[], object]]] = [
            (8, self.source.go_on),
            (30, lambda: self.go_on(self.jobs[0])),
            (second, lambda: self.go_on(self.jobs[1])),
            (6, self.wake),
            (1, lambda: self.kill(self.picks.choice(self.jobs))),
            (2, lambda: self.hang(self.picks.choice(self.jobs))),
            (3, self.copy),
            (1, self.put_back),
            (1, self.lose_last_writes),
            (1, self.compact),
            (1, self.read_again),
            (2, self.check),
            (1, self.end_bulk),
        ]
        weights, calls = zip(*actions, strict=True)
        for _ in range(steps):
            self.picks.choices(calls, weights)[0]()
        self.end_bulk()
        for job in self.jobs:
            self.finish(job)
        self.check()
        self.check_complete()
        for _ in range(4):
            self.wake()
        self.check()
        self.check_complete()
        self.check_readers()

    def begin_bulk(self) -> None:
        self.looking.sink.prepare(TABLES, go_live=False)
        if self.looking.bulk is not None:
            self.looking.bulk.begin_bulk()
        self.in_bulk = True
        self.tell("bulk load begins")

    def end_bulk(self) -> None:
        if not self.in_bulk:
            return
        if self.looking.bulk is not None:
            self.looking.bulk.end_bulk()
        self.in_bulk = False
        self.looking.sink.prepare(TABLES)
        self.tell("bulk load ends")
        self.check()

    def kill(self, job: Job) -> None:
        if job.process is not None:
            job.process.opened.sink.close()
            job.process = None
            self.tell(f"killed {self.jobs.index(job)}")

    def hang(self, job: Job) -> None:
        """It does nothing for a while, and somebody starts another process in its place."""
        if job.process is not None:
            self.hung.append(job.process)
            job.process = None
            self.tell(f"hung {self.jobs.index(job)}")

    def copy(self) -> None:
        if not self.in_bulk and self.held.progress is not None:
            self.copies.append(_Copy(self.destination.copy(self.name), self.held.copy()))
            self.copies = self.copies[-3:]
            self.tell("copied")

    def lose_last_writes(self) -> None:
        """Put the store back by a moment, under a job that has just written."""
        running = [job for job in self.jobs if job.process is not None]
        if running and not self.in_bulk and self.held.progress is not None:
            self.copy()
            job = self.picks.choice(running)
            for _ in range(self.picks.randrange(1, 12)):
                self.go_on(job)
            self.put_back(self.copies[-1])
            for _ in range(self.picks.randrange(1, 6)):
                self.go_on(job)

    def put_back(self, copy: _Copy | None = None) -> None:
        """Make the store lose what was written since a copy."""
        if not self.copies or self.in_bulk:
            return
        for process in [*(job.process for job in self.jobs), *self.hung]:
            if process is not None and process.planned is not None and process.planned.done:
                process.planned.is_doubtful = True
        copy = copy or self.picks.choice(self.copies)
        copy.put_back()
        self.held = copy.held.copy()
        if self.destination.forgets:
            self.held.forget_deletions()
        self.tell(f"put-back to fence {self.held.fence}, {self._stored()}")

    def compact(self) -> None:
        """The brokers remove replaced records. A history needs them longer (docs/sinks/warehouse.md)."""
        ends = {at: self.picks.randrange(end + 1) for at, end in self.log.ends.items()}
        if not self.keeps_history:
            self.log.compact(ends)
            self.tell("compacted")

    def read_again(self) -> None:
        """Make a job read the log from its beginning, maybe to replace rows of the same tag."""
        job = self.picks.choice(self.jobs)
        for each in self.jobs:
            self.kill(each)
        if self.held.progress is not None and not self.in_bulk:
            opened = self.destination.opened(self.name)
            stored = opened.generations.load_progress()
            assert stored == self.held.progress
            self.held.fence = opened.sink.claim()
            self.held.progress = moved_to(stored, dict.fromkeys(ALL_PARTITIONS, 0))
            opened.generations.save_progress(self.held.progress, whole=())
            opened.sink.close()
        job.overwrite_equal_tags = self.picks.random() < 0.5
        self.tell(f"from-the-beginning {self.jobs.index(job)}, overwrite_equal_tags={job.overwrite_equal_tags}")

    def wake(self) -> None:
        """A process that hung goes on, or repeats an earlier batch."""
        if not self.hung:
            return
        process = self.picks.choice(self.hung)
        if process.planned is None:
            if not process.past:
                return
            earlier = self.picks.choice(process.past)
            process.planned = _Planned(earlier.portions, earlier.ends)
        self.tell(f"woken with fence {process.fence}")
        if self._step(process) != "goes on":
            process.opened.sink.close()
            self.hung.remove(process)

    # A job

    def finish(self, job: Job) -> None:
        for _ in range(1000):
            process = job.process
            if process is not None and process.planned is None and process.reads_from == self.log.ends:
                return
            self.go_on(job, to_the_end=True)
        raise AssertionError("a job doesn't come to the end of the log")

    def go_on(self, job: Job, *, to_the_end: bool = False) -> None:
        """One call of a job's process."""
        if job.process is None:
            self.start(job)
            return
        process = job.process
        if process.planned is None:
            process.planned = self._plan(process, to_the_end=to_the_end)
        self.tell(f"job {self.jobs.index(job)} with fence {process.fence}")
        match self._step(process):
            case "saved":
                if not to_the_end and self.picks.random() < 0.1:
                    self.kill(job)
            case "ended":
                self.kill(job)

    def start(self, job: Job) -> None:
        """As ``jobs.query.job`` does it."""
        opened = self.destination.opened(self.name)
        opened.sink.prepare(TABLES, go_live=not self.in_bulk)
        stored = opened.generations.load_progress()
        assert stored == self.held.progress
        check_resume("shop", stored, topics=_TOPICS, begins={}, ends=self.log.ends, now_ms=_now_ms())
        fence = opened.sink.claim()
        if self.destination.fences:
            assert fence > self.held.fence
            self.held.fence = fence
        assert fence == self.held.fence
        newest = [replace(record, bounds=self.log.bounds()) for record in self.log.progress[-1:]]
        # The destination and the tags refuse an older job by themselves.
        keeper = keeper_of(opened.generations, LogFacts({}, [], _TOPICS, _TABLE_OF), stored, now_ms=_now_ms)
        process = Process(opened, fence, keeper, job.overwrite_equal_tags, stored)
        self._learn(process, newest)  # as cdc.kafka.control_topics.ProgressReader gives it first
        process.learned = len(self.log.progress)
        job.process = process
        self.tell(f"started {self.jobs.index(job)} with fence {fence} at {sorted(process.reads_from.values())}")

    def _plan(self, process: Process, *, to_the_end: bool) -> _Planned:
        """A batch, cut anywhere, in portions that are cut anywhere."""
        starts = {at: process.reads_from.get(at, 0) for at in ALL_PARTITIONS}
        ends = {
            at: end if to_the_end else min(end, starts[at] + self.picks.choice((0, 1, 3, 10, 30, 10_000)))
            for at, end in self.log.ends.items()
        }
        records = self.log.between(starts, ends)
        portions: list[tuple[list[Record], Offsets]] = []
        if self.picks.random() < 0.5:
            tasks = [[record for record in records if record.at == at] for at in ALL_PARTITIONS]
        else:
            tasks = [records]
        for task in tasks:
            begin = 0
            while portion := task[begin : begin + self.picks.choice((1, 4, 1000) if len(task) < 200 else (40, 3000))]:
                begin += len(portion)
                reached = {record.at: record.offset + 1 for record in portion}
                portions.append((portion, reached if self.picks.random() < 0.5 else {}))
        return _Planned(portions, ends)

    def _step(self, process: Process) -> str:
        """The next call of a process: ``saved`` when its batch is over, ``ended`` when it must end, or ``goes on``."""
        planned = process.planned
        assert planned is not None
        if planned.done < len(planned.portions):
            records, reached = planned.portions[planned.done]
            records = [record for record in records if process not in self.hung or self._is_remembered(record)]
            batch = batch_of(records, reached, fence=process.fence, overwrite_equal_tags=process.overwrite_equal_tags)
            planned.done += 1
            return "goes on" if self._apply(process, batch) else "ended"
        process.planned = None
        process.past.append(_Planned(planned.portions, planned.ends))
        if planned.is_doubtful and not self._is_behind(process):
            # Rows of this batch may be lost, but no progress: nothing is promised then (docs/guarantees.md).
            return "ended"
        return "saved" if self._save(process, planned) else "ended"

    def _is_behind(self, process: Process) -> bool:
        """Whether the store lacks progress that this process knows of."""
        stored = {} if self.held.progress is None else self.held.progress.next_offsets
        known = {} if process.known is None else process.known.next_offsets
        return any(stored.get(at, 0) < offset for at, offset in known.items())

    def _is_remembered(self, record: Record) -> bool:
        """Whether the destination can tell that an old record is old (docs/sinks/opensearch.md, deletes)."""
        return record.row_name not in self.held.forgotten

    def _is_fenced(self, process: Process) -> bool:
        return self.destination.fences and process.fence != self.held.fence

    def _apply(self, process: Process, batch: Batch) -> bool:
        """Apply a batch. Returns whether the process may go on."""
        try:
            outcome = process.opened.sink.apply(batch)
        except Fenced:
            assert self._is_fenced(process), "the writer was taken for another one"
            self.tell("fenced")
            return False
        if self._is_fenced(process):
            assert not batch.events, "another writer has written"
            return True
        assert not outcome.rejections
        assert outcome.applied + outcome.stale == len(batch.events)
        applied = self.held.apply(batch)
        if not self.in_bulk:
            assert outcome.applied == applied, f"{outcome.applied} rows were written, {applied} are newer"
        return True

    def _save(self, process: Process, planned: _Planned) -> bool:
        """Store progress. Returns whether the process may go on."""
        try:
            self._learn(process, self.log.progress[process.learned :])
            process.learned = len(self.log.progress)
            saved = process.keeper.batch_applied(planned.ends, rejected=0)
        except DataLost:
            assert self._is_behind(process), "nothing was lost"
            self.tell("lost")
            return False
        except Fenced:
            stored = {} if self.held.progress is None else self.held.progress.next_offsets
            known = {} if process.known is None else process.known.next_offsets
            ahead = any(known.get(at, 0) < offset for at, offset in stored.items())
            assert self._is_fenced(process) or ahead, "nobody else has written"
            self.tell("overtaken")
            return False
        self._saved(process, saved)
        return True

    def _learn(self, process: Process, records: Sequence[ProgressRecord]) -> None:
        saved = process.keeper.learn(records)
        if saved is not None:
            self._saved(process, saved)

    def _saved(self, process: Process, progress: Progress) -> None:
        assert not self._is_fenced(process), "another writer has stored progress"
        assert not self._is_behind(process), "what was lost is hidden"
        stored = {} if self.held.progress is None else self.held.progress.next_offsets
        assert all(progress.next_offsets[at] >= offset for at, offset in stored.items()), "another's progress is hidden"
        process.known = self.held.progress = progress
        self.tell(f"saved {self._stored()}")
        self.check_progress()

    def _stored(self) -> str:
        progress = self.held.progress
        if progress is None:
            return "no progress"
        return f"progress {[progress.next_offsets.get(at, 0) for at in ALL_PARTITIONS]}, LSN {progress.watermark_lsn:x}"

    # What must be

    def check_progress(self) -> None:
        """Everything that the stored progress covers is there."""
        lacking = [record for record in self.held.lacks(self.log) if record.row_name not in self.held.doubtful]
        assert not lacking, f"{self._stored()}, and these aren't applied: {lacking[:3]}"

    def check(self) -> None:
        """The sink holds what it was given: each row in its newest version, and no deleted row."""
        if self.in_bulk or self.held.progress is None:
            return
        for table in TABLES:
            wanted = self.held.rows(table)
            found = [(tuple(row.key.values()), (row.row, row.tag)) for row in self.looking.sink.scan(table)]
            assert len(found) == len(dict(found)), "a row was found twice"
            _same(dict(found), wanted)
            keys = [dict(zip(table.key, key, strict=True)) for name, key in self.held.newest if name == table.name]
            by_key = {tuple(row.key.values()): (row.row, row.tag) for row in self.looking.sink.rows(table, keys)}
            _same(by_key, wanted)
            if self.keeps_history:
                _same(self._stories(table), self.held.stories(table))
        if self.destination.sets is not None:
            assert self.destination.sets(self.name) == _sets_of(self.held.rows(ITEMS))
        assert self.looking.generations.load_progress() == self.held.progress
        self.tell("checked")

    def check_complete(self) -> None:
        """After the whole log, the sink holds the source's rows, and a history each version once."""
        for table in TABLES:
            held = {key: row for key, (row, _) in self.held.rows(table).items()}
            _same(held, {key: row for (name, key), row in self.source.rows.items() if name == table.name})
        if self.keeps_history:
            assert self.held.versions.keys() == {(record.row_name, record.event.tag) for record in self.log}
        self.check_progress()

    def check_readers(self) -> None:
        """Applications find the same, by the name that they know."""
        with self.destination.reader(self.name) as find:
            for number in {key[0] for name, key in self.held.newest if name == ITEMS.name}:
                row = self.source.rows.get((ITEMS.name, (number,)))
                assert find(int(str(number))) == (None if row is None else row["note"])

    def _stories(self, table: Any) -> dict[Key, list[Version]]:
        assert self.destination.query is not None
        relation = table.name.name if table.name.schema == "public" else f"{table.name.schema}__{table.name.name}"
        view = f"{self.name}.{quote_identifier(f'{relation}_history')}"
        found = self.destination.query(
            f"select {', '.join(map(quote_identifier, table.key))}, _tag, _operation, note, valid_from, valid_to"
            f" from {view} order by _tag"
        )
        stories: dict[Key, list[Version]] = {}
        for *key, tag, word, note, valid_from, valid_to in found:
            times = [None if at is None else round(at.timestamp() * 1000) for at in (valid_from, valid_to)]
            assert times[0] is not None
            stories.setdefault(tuple(key), []).append(Version(tag, _WORDS[word], note, times[0], times[1]))
        return stories


def _sets_of(items: dict[Key, tuple[Row, str]]) -> dict[str, set[str]]:
    """The sets of the layout that has some (``tests.contract.destinations``)."""
    sets: dict[str, set[str]] = {}
    for row, _ in items.values():
        names = [f"items:of:{row['id']}", *([] if row["number"] is None else [f"items:by_number:{row['number']}"])]
        for name in names:
            sets.setdefault(name, set()).add(f"item:{row['id']}")
    return sets


def _same(found: dict[Key, Any], wanted: dict[Key, Any]) -> None:
    different = {
        key: (found.get(key), wanted.get(key)) for key in {*found, *wanted} if found.get(key) != wanted.get(key)
    }
    assert not different, f"key -> (found, wanted): {different}"


def play(kind: str, endpoints: Callable[[], Any], seed: int, *, steps: int = STEPS, large: int = 0) -> Counter[str]:
    """One round: what was done in it, and how often. An error says how to run it again."""
    made = duckdb_history(None) if kind == "duckdb-history" else opened_destination(kind, endpoints)
    run = Run(made, f"t{uuid.uuid4().hex[:12]}", seed, keeps_history=kind.endswith("history"))
    try:
        run.run(steps, large=large)
    except Exception as error:
        again = f"python -m tests.contract.history_jobs {kind} --seed {seed} --steps {steps} --large {large}"
        error.add_note("\n".join([f"{again} --stack DIRECTORY", *run.told[-40:]]))
        raise
    finally:
        made.close()
    return run.counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contract.history_jobs", description=__doc__)
    parser.add_argument("kind", choices=("memory", *KINDS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--stack", type=Path, default=Path(".lockstep/test"))
    chosen = parser.parse_args()
    endpoints = Stack(chosen.stack, durable=False, light=True).endpoints()
    done, failed = Counter[str](), 0
    for number, seed in enumerate(range(chosen.seed, chosen.seed + chosen.rounds), 1):
        try:
            done += play(chosen.kind, lambda: endpoints, seed, steps=chosen.steps, large=chosen.large)
        except Exception:
            failed += 1
            traceback.print_exc()
        print(f"{chosen.kind}, seed {seed}: {failed} of {number} rounds have failed; {dict(done)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
