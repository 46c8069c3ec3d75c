"""Pages that explain data: samples of runs, where they came from, and why others are missing."""
