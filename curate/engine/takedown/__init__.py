"""Takedowns: where a sample is, taking it out of everything, and the receipt that proves it.

bytes      what identifies an image's bytes in any file
find       where samples are, by index
datasets   a dataset without some samples
erase      removing bytes from pools, facts, reports and logs
takedown   the order of it all, and the receipt
"""
