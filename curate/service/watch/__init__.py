"""Live status and events of runs: read from the workspace once per process, however many watch."""
