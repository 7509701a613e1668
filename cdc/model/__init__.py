"""The shared words: LSN, tag, table, event, error. Standard library only, and no I/O."""
