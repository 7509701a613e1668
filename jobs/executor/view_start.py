"""Whether a view's task can go on with the state that it finds."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from jobs.executor.task_input import Task, ViewInput
from jobs.executor.view_coordination import ViewRecords
from jobs.executor.view_topic import ViewTopic
from jobs.offsets import Offsets
from views.state.contract import UnusableState
from views.state.file import FileState
from views.view import View, identity


@contextmanager
def opened_state(task: Task, view: ViewInput) -> Iterator[FileState]:
    """The state on this machine, or an empty one if there is none or it can't be read."""
    directory = Path(view.directory)
    own = identity(view.plan, task.shapes, view.shard)
    try:
        state = FileState(directory, identity=own)
    except UnusableState:
        # It holds nothing that the log doesn't.
        shutil.rmtree(directory, ignore_errors=True)
        state = FileState(directory, identity=own)
    with closing(state):
        yield state


def can_go_on(task: Task, view: View, topic: ViewTopic | None, stored: ViewRecords, reached: Offsets) -> bool:
    """Whether the view can go on from its state, if the sink has stored ``reached``. If not, it is built."""
    assert task.view is not None
    return (
        view.log() == task.view.log
        and is_usable(view, task.run, reached)
        and (view.is_of(task.run) or _is_of_last_run(view, stored))
        and (topic is None or _fits(view, topic))
    )


def is_usable(view: View, run: str, reached: Offsets) -> bool:
    """Whether a view can go on from its state: the state is whole, and fits what the sink has stored.

    A state behind the sink is an earlier one. A state may be ahead of a sink that was put back if it has forgotten
    output that the sink hasn't stored. So may a state that has looked at the sink's rows and isn't delivered yet: rows
    that came back with an earlier sink aren't among those that it has deleted.
    """
    position = view.position()
    if position.is_building or not position.lsn:
        return False
    if any(position.offsets.get(at, 0) < offset for at, offset in reached.items()):
        return False
    if view.is_of(run):
        return True
    return not view.is_arranged and all(reached.get(at, 0) >= offset for at, offset in view.forgotten().items())


def _is_of_last_run(view: View, stored: ViewRecords) -> bool:
    """Whether no other state has written the result, or begun to while it was built, since this one did. Another state,
    such as one on another machine, may have written rows unnoticed that are gone since. This state never had them, so
    it wouldn't have them removed."""
    last = stored.run
    return last is None or view.is_of(last)


def _fits(view: View, topic: ViewTopic) -> bool:
    """Whether a view can go on with its topic: its own state has written the topic, and all of its output is there.
    Another state may have come to the same position by other steps. To it, a row that changed and changed back is
    unchanged, and the topic would keep the other version."""
    last = topic.last
    if last is None or not view.is_of(last.run):
        return False
    return all(last.offsets.get(at, 0) >= offset for at, offset in view.forgotten().items())
