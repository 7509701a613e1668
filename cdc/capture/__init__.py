"""The decisions of capture: which change gets which tag, when a batch is committed, what may be confirmed. Clock,
replication stream and publisher come in as arguments."""
