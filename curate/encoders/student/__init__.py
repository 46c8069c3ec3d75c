"""Students exported by `distill export`, for inference: `distill:FOLDER`, and `tiny`, which is part of the package.

model_folder.py  the folder's configuration and what may be wrong with it; no torch
model.py         the loaded model, from images and texts to vectors; `distill.load` returns it
encoder.py       the model as an Encoder
config.py        sizes of the network
network/         the network itself, which `distill train` trains
"""
