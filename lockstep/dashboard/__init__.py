"""``lockstep dashboard``: one process that looks at the pipeline, and shows it to people and programs."""
