"""Incremental operators: they turn changes of a node's sources into changes of its rows.

A change is a row with a weight: +1 for inserted, -1 for deleted. Rows of a node have a key, so no row occurs twice.
Changes are brought in table by table, each through the whole plan before the next one. So every operator sees the other
tables as they are at that moment, and no pair of changes is counted twice.
"""
