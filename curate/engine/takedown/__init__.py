"""Takedowns: where a sample is (find), datasets without it, removing its bytes (erase), and the receipt (takedown)."""
