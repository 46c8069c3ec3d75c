"""The service as a process, a real Ray head on a network that can be cut, and what goes wrong with both."""
