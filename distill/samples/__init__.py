"""From dataset folders to packed patches, in the order of one image's way.

dataset, webdataset, tar_index   open a folder of ours, or index tars of anybody
blend     several of them as one
split     which duplicate sets are held out
order     the global order of a source's epoch
draws, sizes, texts   what is drawn for a picture: its size, its text
packing   images into sequences of fixed length
track, stream   the endless sequence of steps, the same for any number of ranks and workers
members   bytes out of the tars, local or on an object store
pixels, augment, patches, pictures   decode, change, resize to a patch grid, cut into patches; cached
loader    a rank's share of each step, read ahead by threads
"""
