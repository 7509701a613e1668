"""Read your own writes: a token after the commit, and a wait until a sink's readers see everything up to it.

``token.commit_token`` and ``commit_token_async`` ask the database. ``client.Client`` waits, through the server of
``lockstep dashboard``, or by asking the stores itself if no server runs.
"""
