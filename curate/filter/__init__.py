"""Which rows go on, by any column: thresholds that need no code."""
