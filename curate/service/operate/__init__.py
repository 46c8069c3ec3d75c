"""For those who operate the service: metrics and readiness."""
