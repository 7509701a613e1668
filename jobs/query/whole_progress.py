"""The progress of a query whose tasks read whole transactions: that of the sink, or of each shard of its view."""

from jobs.executor.result import Result
from jobs.executor.task_input import Task
from jobs.offsets import Offsets
from jobs.query.progress import ProgressKeeper
from jobs.query.view_shards import ViewShards
from sinks.contract import NOTHING_WRITTEN, Progress
from views.figures import ViewFigures


class WholeProgress:
    """Called by the batches' thread, and by the one that listens to tasks."""

    def __init__(self, task: Task, keeper: ProgressKeeper) -> None:
        self.keeper = keeper
        # A consistent sink has stored the offsets with its rows. A view's state may have advanced without rows.
        self._are_with_rows = task.steps is not None
        self.shards: ViewShards | None = None
        """The shards of a divided view."""
        view = task.view
        if view is not None and view.shards:
            self.shards = ViewShards.of_progress(keeper.shards, count=len(view.shards), reached=view.reached)

    def is_behind(self, shard: int | None) -> bool:
        """Whether more is published than a task has. A shard that is ahead waits for others, and isn't behind."""
        shards = self.shards
        return self.keeper.is_behind and (shard is None or shards is None or not shards.is_ahead(shard))

    def store(self, next_offsets: Offsets, *, shard: int | None = None, rejected: int = 0) -> Progress:
        """Store that everything below these offsets is applied, by this ``shard`` if given. Returns the progress.
        Raises as ``ProgressKeeper.batch_applied``."""
        if self.shards is None:
            written = next_offsets if self._are_with_rows else NOTHING_WRITTEN
            return self.keeper.batch_applied(next_offsets, rejected=rejected, written=written)
        if shard is not None:
            self.shards.reach(shard, next_offsets)
        return self.shards.store(
            lambda least, reached: self.keeper.batch_applied(least, rejected=rejected, shards=reached)
        )

    def reach(self, result: Result) -> None:
        """Add the shards' positions and figures to the result. The view's offsets move once all shards have
        reported."""
        if self.shards is None:
            return
        for shard, reached in result.reached.items():
            self.shards.reach(shard, reached)
        for shard, figures in result.views.items():
            result.view = self.shards.figures(shard, figures) or result.view
        if len(result.reached) == self.shards.count:
            result.next_offsets = self.shards.least

    def figures(self, shard: int | None, figures: ViewFigures) -> ViewFigures | None:
        """The view's figures; see ``ViewShards.figures``."""
        return figures if self.shards is None or shard is None else self.shards.figures(shard, figures)
