"""The papers' ablations at small scale: arms that differ in one thing, three seeds, paired differences.

folders      where everything lies, and commands as subprocesses whose CPU time is counted
cifar        CIFAR-10 in disjoint parts, as pools to curate and as pictures to judge by
teacher      a convolutional network taught on one of these parts: the frozen teacher
runs         an arm under a seed: train, judge, keep the result
judge        what the student makes of pictures that it never saw
statistics   paired differences with intervals
curated, relations, phi_s, packing, balanced      the ablations
"""
