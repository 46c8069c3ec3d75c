"""From dataset folders to packed patches.

sources/   opens packed datasets and any WebDataset, mixes several of them, splits off test samples, reads members
images/    plans image sizes, decodes, augments and resizes images to patches, caches them
batches/   draws, orders and packs images into the endless sequence of steps, and loads a rank's share of each step
texts      draws the text of an image
cache      lets several processes build an index in one cache folder
"""
