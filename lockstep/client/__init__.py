"""Read your own writes: a token after the commit, and a wait until a sink's readers see everything up to it.

``token.commit_token`` and ``commit_token_async`` ask the database. ``client.Client`` waits, by the server of ``lockstep
dashboard`` or, where none runs, by asking the stores itself.
"""
