"""Filters on any column by thresholds, without code."""
