"""Alerts: which conditions are open, who has been told of them, and how they are told.

``conditions`` says what is wrong. ``book`` decides what to tell of it, once. ``store`` keeps that on disk,
``outbox`` and ``channels`` deliver it, and ``watch`` puts them together. ``facts`` asks what no lag report says.
"""
