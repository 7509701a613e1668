"""Files for Prometheus and Grafana, which come with the package."""

from pathlib import Path


def alert_rules() -> Path:
    """Rules for Prometheus."""
    return Path(__file__).with_name("rules.yml")
