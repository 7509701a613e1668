"""Alerts: who has been told of which conditions, and how.

``book`` decides what to tell of a condition, once. ``store`` keeps that on disk, ``outbox`` and ``channel`` deliver it,
and ``reporter`` puts them together.
"""
