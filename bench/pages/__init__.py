"""Pages that explain data, in a real browser."""
