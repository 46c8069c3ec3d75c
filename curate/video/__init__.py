"""What videos show over time, and the clips between their cuts."""
