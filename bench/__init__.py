"""Speed, measured: every figure stands beside its own limit, taken in the same run on the same machine.

`python -m bench` starts its own servers and runs the real `lockstep capture` and `lockstep apply` against them.
It prints a table and writes JSON. Nothing is asserted: a slow machine gives low figures, not an error.
"""
