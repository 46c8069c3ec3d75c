"""Pages that explain data."""
