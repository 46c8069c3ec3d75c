"""Users of requests, and what they may do."""
