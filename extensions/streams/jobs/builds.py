"""The builds of a stream query's result: which one is worked on, which ones readers see, and which ones are dropped."""

from collections.abc import Callable
from contextlib import closing

from cdc.kafka.topic_admin import TopicAdmin
from extensions.streams.jobs.checkpoint import Checkpoint
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.topic_names import stream_result_topic
from jobs.generations.record import Phase, list_generations, set_phase
from sinks.contract import OpenedSink


def newest_generation(plan: StreamQueryPlan, opened: OpenedSink) -> int | None:
    """The newest build of a query's result; None if there is none. Raises LockstepError for another pipeline's."""
    generations = [each for each in plan.builds(opened) if each.phase is not Phase.RETIRED]
    return generations[-1].number if generations else None


class Builds:
    """The builds from the point of view of the job of build ``generation``. ``opened`` is that build's sink."""

    def __init__(
        self,
        plan: StreamQueryPlan,
        opened: OpenedSink,
        generation: int,
        checkpoint_of: Callable[[int], Checkpoint],
    ) -> None:
        self._plan = plan
        self._opened = opened
        self._generation = generation
        self._checkpoint_of = checkpoint_of
        # Whether readers see this build.
        self.is_live = False
        # The builds whose rows readers see or have seen; once this one is live, it is the last.
        self.shown: list[int] = []
        self._may_have_earlier = True

    def has_other(self) -> bool:
        """Whether another build is to be worked on: a newer one has begun, or this one was given up."""
        return newest_generation(self._plan, self._opened) != self._generation

    @property
    def has_earlier(self) -> bool:
        """Whether builds before the live one may still exist."""
        return self.is_live and self._may_have_earlier

    def look(self) -> None:
        self.is_live = self._opened.generations.live() == self._generation

    def look_shown(self) -> list[int]:
        earlier = [
            each.number
            for each in list_generations(self._opened)
            if (each.is_live or each.phase is not Phase.RETIRED) and each.number < self._generation
        ]
        self.shown = [*sorted(earlier), *([self._generation] if self.is_live else [])]
        return self.shown

    def go_live(self) -> bool:
        """Show readers this build, unless another one is to be worked on. Returns whether they see it."""
        if self.has_other():
            return False
        self._keep_shown()
        self._opened.generations.switch()
        self._keep_shown()  # a rebuild may have given this one up meanwhile, without seeing that it is live
        self.is_live = True
        self.look_shown()
        return True

    def _keep_shown(self) -> None:
        """Mark the live build as ready again. A rebuild that began as it went live has given it up."""
        for each in list_generations(self._opened):
            if each.is_live and each.phase is Phase.RETIRED:
                set_phase(self._opened.records, each.number, Phase.READY)

    def drop_earlier(self, cluster: TopicAdmin, has_posted: Callable[[int], bool] | None = None) -> None:
        """Drop the builds before the live one, including any that a killed job left. With ``has_posted``, a build that
        was shown stays until the webhook has all of its rows: its topic may have rows that this build lacks.
        """
        self._may_have_earlier = False
        for earlier in list_generations(self._opened):
            if earlier.number >= self._generation:
                continue
            was_shown = earlier.phase is not Phase.RETIRED
            if has_posted is not None and was_shown and not has_posted(earlier.number):
                self._may_have_earlier = True
                continue
            set_phase(self._opened.records, earlier.number, Phase.RETIRED)
            self.shown = [number for number in self.shown if number != earlier.number]
            # Before the build: once the build isn't listed any more, nobody finds its topic.
            topic = stream_result_topic(self._plan.pipeline, self._plan.name, earlier.number)
            if cluster.exists(topic):
                cluster.remove([topic])
            self._checkpoint_of(earlier.number).remove()
            with closing((dropped := self._plan.opened(earlier.number)).sink):
                dropped.generations.drop()
