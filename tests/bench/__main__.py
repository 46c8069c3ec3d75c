"""`make bench`: every benchmark, one after the other. Ratios count; the first line says on what machine."""

from __future__ import annotations

from tests.bench import (
    bench_balance,
    bench_divide,
    bench_duplicates,
    bench_embed,
    bench_engine,
    bench_kmeans,
    bench_pack,
    bench_pipeline,
    bench_sampling,
)
from tests.bench.measure import machine


def main() -> None:
    print(machine())
    for module in (
        bench_engine,
        bench_pipeline,
        bench_embed,
        bench_pack,
        bench_duplicates,
        bench_kmeans,
        bench_divide,
        bench_sampling,
        bench_balance,
    ):
        print(f"\n{module.__doc__}")
        module.main()


if __name__ == "__main__":
    main()
