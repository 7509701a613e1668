"""Alerts: who has been told of which conditions, and how. ``monitor.conditions`` lists the conditions.

``due_messages`` decides what to send about a condition, once. ``store`` keeps that on disk, ``outbox`` and ``channel``
deliver it, and ``reporter`` puts them together.
"""
