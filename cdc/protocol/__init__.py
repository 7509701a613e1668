"""Bytes to values and back: pgoutput, COPY text, PostgreSQL's value texts, the envelope, the control records.

No socket, clock, environment or log in here. What is malformed raises with its position; nothing is guessed.
"""
