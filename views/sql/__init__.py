"""A query in PostgreSQL's dialect -> a plan, or everything that stands against keeping it. Pure.

sqlglot parses it. What its tree has is taken only where it is known here, with each of its parts: whatever isn't is
refused, with the clause, the reason and the remedy.
"""
