"""A job's pause: no batch begins while a request asks for that. Pure, except for the gate. Whoever asked may have died,
so an old request expires."""

from cdc.model.timeouts import PAUSE_MAX_S
from jobs.generations.batch_gate import BatchGate


class Pause:
    """How one job follows the requests in the record ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The request that the job pauses for, and since when.
        self.request: str | None = None
        self._since_s = 0.0
        # The last request that expired, which isn't obeyed again.
        self.expired = ""
        self._gate: BatchGate | None = None

    def guard(self, gate: BatchGate) -> None:
        self._gate = gate
        if self.request is not None:
            gate.hold(0)

    def expire(self, now_s: float) -> None:
        """End a pause that has lasted too long."""
        if self.request is not None and now_s - self._since_s > PAUSE_MAX_S:
            self._go_on()

    def obey(self, request: str | None, now_s: float) -> bool:
        """Pause or go on, as the record says now. Returns whether whoever asked should hear of that. If a batch is
        still running, no other one begins, and the next call looks again."""
        is_news = self.request not in (None, request)
        if is_news:
            self._go_on()
        if request is None:
            self.release()
        elif request not in (self.request, self.expired) and (self._gate is None or self._gate.hold(0)):
            self.request, self._since_s = request, now_s
            is_news = True
        return is_news

    def release(self) -> None:
        if self._gate is not None:
            self._gate.release()

    def _go_on(self) -> None:
        self.expired, self.request = self.request or "", None
        self.release()
