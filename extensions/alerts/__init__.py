"""Alerts: which conditions were reported, and delivery. ``monitor.conditions`` lists the conditions. ``due_messages``
decides what to send about a condition, once. ``store`` keeps that on disk, ``outbox`` and ``channel`` deliver it, and
``reporter`` puts them together.
"""
