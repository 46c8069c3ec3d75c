"""The commands `distill train`, `teach` and `eval`; `train` and `evaluate` import torch only when they compute."""

import os

# Read when torch is loaded: threads that spin while they wait for each other make a step 30 times slower as soon as
# another process needs a core (8.0 s against 0.24 s, 2 threads on 2 cores beside 2 busy processes).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
