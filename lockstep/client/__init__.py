"""Read your own writes: a token after the commit, and a wait until a sink's readers see everything up to it.

``commit_token`` and ``commit_token_async`` ask the database. ``Client`` waits, by the server of ``lockstep dashboard``
or, where none runs, by asking the stores itself.
"""

from lockstep.client.client import Client
from lockstep.client.token import commit_token, commit_token_async

__all__ = ["Client", "commit_token", "commit_token_async"]
