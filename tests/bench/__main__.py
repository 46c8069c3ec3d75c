"""`make bench`: every benchmark but the ablations, which take hours, one after the other.

Ratios count; the first line says on what machine.
"""

from __future__ import annotations

from tests.bench import (
    bench_balance,
    bench_concepts,
    bench_divide,
    bench_duplicates,
    bench_embed,
    bench_engine,
    bench_gpu_student,
    bench_index,
    bench_kmeans,
    bench_language,
    bench_moe,
    bench_pack,
    bench_packing,
    bench_pipeline,
    bench_reader,
    bench_sampling,
    bench_text,
    bench_text_balance,
    bench_tiny,
    bench_vocabulary,
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
        bench_text,
        bench_language,
        bench_concepts,
        bench_vocabulary,
        bench_text_balance,
        bench_reader,
        bench_index,
        bench_packing,
        bench_moe,
        bench_gpu_student,
        bench_tiny,
    ):
        print(f"\n{module.__doc__}")
        module.main()


if __name__ == "__main__":
    main()
