"""The words everyone uses: LSN, tag, table, event, error. Standard library only; nothing here does I/O."""
