"""Incremental operators: changes of a node's sources in, changes of its rows out.

A change is a row with a weight: +1 came, -1 went. Rows of a node have a key, so no row is there twice. Changes are
brought in table by table, each through the whole plan before the next one. So every operator sees the other tables as
they stand in that moment, and no pair of changes is counted twice.
"""
