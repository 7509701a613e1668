"""Who may write a view's documents: the index has an alias for its writer alone, and the next writer removes it.

A document that leaves a view leaves nothing permanent that keeps an older version out. So a job that takes over looks
through the documents, and no other write may come in once it has begun. The alias's name ends with the writer's fence,
and every request of that writer uses it. Without the alias, the cluster refuses the request.

The cluster resolves the alias before it writes, so a request that is under way still writes. The job that takes over
waits for it.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from cdc.model.errors import Fenced, LockstepError, Unavailable
from sinks.generation_errors import missing_generation, replaced_writer
from sinks.opensearch.coordination import record_id
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.names import fence_of, writer_alias

_UNDER_WAY_S: Final = 0.2
"""How soon to check again whether the former writer's request has ended."""

_TRIES: Final = 10

_TASKS: Final = "/_tasks"
_WRITES: Final = "indices:data/write/bulk*"
_NOT_FOR_US: Final = (403, 404, 405)
"""Statuses of a request that our role may not make, or that the server doesn't know."""


class WriterAliases:
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._client = indexes.client
        self._bookkeeping = indexes.bookkeeping
        self._record = record_id(f"g{indexes.generation}.fence")

    def fence(self) -> int:
        """The fence of the writer; 0 if there was none."""
        held = self._indexes.writer_aliases()
        return max((fence_of(index, alias) for index, aliases in held.items() for alias in aliases), default=0)

    def claim(self) -> int:
        """Shut out the former writer, and return the fence of the new one.

        Raises Fenced when yet another job has become the writer meanwhile, and Unavailable while a request of the
        former one may still write.
        """
        fence = self._new_fence()
        self._replace_below(fence)
        if self.fence() > fence:
            raise self.fenced()
        self._check_nothing_is_under_way()
        return fence

    def check(self, fence: int) -> None:
        if self.fence() != fence:
            raise self.fenced()

    def fenced(self) -> Fenced:
        return replaced_writer(self._indexes.name, self._indexes.generation)

    def _new_fence(self) -> int:
        """A unique fence, greater than all before.

        A cluster that was put back has forgotten some fences. The clock has gone on, so it exceeds those too.
        """
        for _ in range(_TRIES):
            held = self._bookkeeping.held(self._record)
            before = 0 if held is None else int(held.source["text"])
            fence = max(before + 1, time.time_ns() // 1_000_000)
            if self._bookkeeping.replace(self._record, held, {"text": str(fence)}):
                return fence
        raise Unavailable("other jobs claim the same view in opensearch now")

    def _replace_below(self, fence: int) -> None:
        """One change of the cluster's state. All nodes know it when this returns."""
        actions: list[dict[str, Any]] = []
        for index, aliases in self._indexes.writer_aliases().items():
            older = [alias for alias in aliases if fence_of(index, alias) < fence]
            actions += [{"remove": {"index": index, "alias": alias}} for alias in older]
            actions.append({"add": {"index": index, "alias": writer_alias(index, fence)}})
        if not actions:
            raise missing_generation(self._indexes.generation)
        if not self._client.call("POST", "/_aliases", {"actions": actions})["acknowledged"]:
            raise Unavailable("not all nodes of opensearch know who writes the view", retry_after_s=1.0)

    def why_unseen(self) -> str:
        """Why nobody can tell whether a request is still under way; "" if the cluster tells."""
        tasks = self._tasks()
        return f"GET {_TASKS} is answered with {tasks}" if isinstance(tasks, int) else ""

    def _check_nothing_is_under_way(self) -> None:
        """Raise Unavailable while a request that used a removed alias may still write.

        If the cluster doesn't tell, nothing is waited for; ``lockstep doctor`` reports that.
        """
        tasks = self._tasks()
        if isinstance(tasks, int):
            return
        if tasks.get("node_failures"):
            raise Unavailable("a node of opensearch doesn't say what it is at work on", retry_after_s=1.0)
        indexes = list(self._indexes.writer_aliases())
        if any(
            writes_to(str(task.get("description", "")), indexes)
            for node in tasks.get("nodes", {}).values()
            for task in node["tasks"].values()
        ):
            raise Unavailable(
                "a request of the job before is still under way in opensearch", retry_after_s=_UNDER_WAY_S
            )

    def _tasks(self) -> Any:
        """The cluster's answer about its present writes, or the status with which it refuses to answer."""
        try:
            return self._client.call("GET", _TASKS, parameters={"actions": _WRITES, "detailed": "true"})
        except LockstepError as error:
            status = getattr(error.__cause__, "status_code", None)
            if status in _NOT_FOR_US:
                return status
            raise


def writes_to(description: str, indexes: Sequence[str]) -> bool:
    """Whether a task of the cluster with this description writes to one of these indexes, by any of its names.

    ``requests[2], indices[shop.views.a_g1_W7]`` is a whole request, ``requests[2], index[shop.views.a_g1][0]`` one
    shard's part.
    """
    named = description.replace("[", " ").replace("]", " ").replace(",", " ").split()
    return any(name == index or name.startswith(f"{index}_W") for name in named for index in indexes)
