"""Samples of runs: slices of them, one of them as a story, their thumbnails."""
