"""Files for Prometheus and Grafana, which come with the package."""
