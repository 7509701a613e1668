"""A query in PostgreSQL's dialect -> a plan, or every reason why it can't be maintained. Pure. sqlglot parses the
query. Every part of its tree must be known here. Anything unknown is refused, with the clause, the reason and the
remedy.
"""
