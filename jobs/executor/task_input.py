"""The input that every task of a batch gets from the driver."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from cdc.kafka.topic_names import table_topic
from cdc.model.table import Table, TableName
from jobs.executor.log_reader import Client
from jobs.executor.shape_history import TableHistory
from jobs.offsets import Offsets
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, open_sink
from views.plan import RowPlan, ViewPlan
from views.shard import Shard

OpenSink = Callable[[str, SinkSettings, int], OpenedSink]
"""Opens a sink by its name, its settings and the number of a generation."""


@dataclass(frozen=True)
class ViewTopicInput:
    """The topic of a view's rows, of one generation."""

    pipeline: str
    view: str
    generation: int
    topic: str
    max_message_bytes: int


@dataclass(frozen=True)
class ViewInput:
    """The input of a task that maintains a view.

    ``directory`` is where its state is on the task's machine. ``reached`` are the next offsets stored in the sink: a
    state behind them is an earlier one. ``log`` identifies the topics, so that recreated ones differ. ``trimmed`` reads
    topics that have lost their beginning. ``result_topic`` gets the result besides the sink. A divided view has
    ``shards``, each with a task. ``shard`` is this task's, once it knows.
    """

    plan: ViewPlan
    table: Table
    directory: str
    progress_topic: str
    pipeline: str
    reached: Offsets = field(default_factory=dict)
    log: str = ""
    trimmed: bool = False
    result_topic: ViewTopicInput | None = None
    shards: tuple[Shard, ...] = ()
    shard: Shard | None = None

    @property
    def topic(self) -> str:
        """The name under which its rejections are stored, as a table's are under that of its topic."""
        return table_topic(self.pipeline, self.table.name)


@dataclass(frozen=True)
class StepsInput:
    """The input of a task that applies whole transactions of all tables at once. ``reached`` is where it reads on."""

    progress_topic: str
    pipeline: str
    reached: Offsets = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What every task of a batch needs to know. Sent to the executors."""

    sink: str
    settings: SinkSettings
    generation: int
    fence: int
    tables: Mapping[str, TableName]
    """Topic -> table."""
    shapes: Mapping[TableName, Table]
    """The shapes that the generation was last prepared for."""
    window_bytes: int
    """How many bytes of records a task folds before it applies them. More are applied window by window, in order."""
    retry_s: float
    run: str
    """New for each run of the query: an open sink may not know a table's new shape."""
    identities: Mapping[TableName, str] = field(default_factory=dict)
    """The identities of the sink's tables when the query began, as far as known."""
    rejected_before: Mapping[tuple[str, bytes], str] = field(default_factory=dict)
    """Topic and key -> tag of events that this sink has rejected and that nothing has replaced yet."""
    computed: Mapping[TableName, RowPlan] = field(default_factory=dict)
    """What to compute of each row, for tables with expressions."""
    versions: Collection[TableName] = ()
    """The tables whose versions the sink stores. If there are any, versions are taken before the fold."""
    complete_at_ms: int = 0
    """When the whole log was last read, in milliseconds since 1970."""
    compaction_lag_ms: int = 0
    """How long, at least, the log retains each version."""
    histories: Mapping[TableName, TableHistory] = field(default_factory=dict)
    """For the tables that had other shapes before."""
    known_ends: Offsets = field(default_factory=dict)
    """The shapes of all events below these offsets are known; nothing is known of later ones."""
    client: Client | None = field(default=None, repr=False)
    """How the task reads its records from the log. None: it gets them. Holds the password."""
    open: OpenSink = open_sink
    view: ViewInput | None = None
    """If set, the sink gets a query's result."""
    steps: StepsInput | None = None
    """If set, the sink's readers see whole transactions."""
    server: str | None = None
    """The sink's server that has the job's progress; see ``OpenedSink``. No row may go to another one."""

    @property
    def reads_whole_transactions(self) -> bool:
        """Whether one task reads all partitions, up to where transactions end, and decides itself what to read."""
        return self.view is not None or self.steps is not None

    @property
    def append_only(self) -> frozenset[str]:
        """The topics of the tables without a key."""
        return frozenset(topic for topic, table in self.tables.items() if not self.shapes[table].key)

    def only(self, topics: Collection[str]) -> "Task":
        """The task of a batch that has records of these topics only."""
        tables = {topic: table for topic, table in self.tables.items() if topic in topics}
        names = set(tables.values())
        own = tables.keys() | ({self.view.topic} if self.view is not None else set())
        return replace(
            self,
            tables=tables,
            shapes={name: shape for name, shape in self.shapes.items() if name in names},
            identities={name: text for name, text in self.identities.items() if name in names or self.view is not None},
            rejected_before={at: tag for at, tag in self.rejected_before.items() if at[0] in own},
            computed={name: plan for name, plan in self.computed.items() if name in names},
            versions=[name for name in self.versions if name in names],
            histories={name: history for name, history in self.histories.items() if name in names},
            known_ends={at: end for at, end in self.known_ends.items() if at[0] in tables},
        )
