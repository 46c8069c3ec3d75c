"""Judges features: kernels on arrays, and the shells that ask models for them.

knn          weighted nearest neighbours
scores       accuracies from scores, by class too
zero_shot    class names through prompt templates to class vectors
retrieval    recalls between pictures and texts, with re-weighting as an option
probe        linear probes of pictures and of patches, in closed form
ensemble     heads weighted by the entropy of what they say
cka          how alike two representations of the same tokens are
maps         patch features as colours
fidelity     how well a student foretells its teachers
"""
