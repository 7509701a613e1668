"""Fixtures of every test folder: the servers that live tests run against, and databases in them."""

pytest_plugins = ["tests.services", "tests.databases"]
