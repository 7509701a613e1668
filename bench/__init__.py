"""Speed, measured: every figure has its own limit beside it, from the same run on the same machine.

`python -m bench` starts its own servers and runs the real `lockstep capture` and `lockstep apply` against them. It
prints a table and writes JSON. It asserts nothing: a slow machine gives low figures, not an error.
"""
