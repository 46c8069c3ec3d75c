"""Releases: what of a dataset may be published, without its pixels. Written from tables, read as a list of URLs."""
