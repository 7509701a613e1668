"""The ``lockstep`` command: the one place that joins capture, snapshot, jobs, sinks, monitor and the local servers."""
