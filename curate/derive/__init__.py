"""Derived samples and the samples that they were made of, whichever medium they are."""
