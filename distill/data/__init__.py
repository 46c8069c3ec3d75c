"""From a dataset folder to packed patches, in the order of one image's way.

dataset   opens the folder and its index
split     which duplicate sets are held out
order     the global order of an epoch
packing   images into sequences of fixed length
stream    the endless sequence of steps, the same for any number of ranks and workers
members   bytes out of the tars, local or on an object store
pictures  decode, resize to a patch grid, cut into patches; cached
loader    a rank's share of each step, read ahead by threads
"""
