"""The papers' ablations at small scale: arms that differ in one thing, three seeds, paired differences.

folders      folders of the ablations, and commands as subprocesses whose CPU time is counted
cifar        CIFAR-10 in disjoint parts, as pools to curate and as test images
teacher      a convolutional network trained on one of these parts: the frozen teacher
runs         an arm with a seed: train, evaluate, store the result
judge        evaluates students on held-out images
statistics   paired differences with intervals
curated, relations, phi_s, packing, balanced, texts      the ablations
"""
