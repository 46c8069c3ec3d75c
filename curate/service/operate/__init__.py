"""For those who operate the service: metrics, health, backup, and results that are kept because they take long."""
