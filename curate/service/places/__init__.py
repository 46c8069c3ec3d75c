"""Workspaces, targets, and what recipes may use."""
