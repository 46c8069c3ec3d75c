"""Figures of docs/benchmarks.md. Each file prints its own, beside a peer or a limit measured in the same run."""
