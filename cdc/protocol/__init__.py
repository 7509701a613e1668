"""Bytes to values and back: pgoutput, COPY text, PostgreSQL's texts of values, the envelope, the control records. No
socket, clock, environment or log here. Malformed bytes raise an error with their position; nothing is guessed."""
