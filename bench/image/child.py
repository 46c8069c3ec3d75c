"""Cost of a limited child that decodes an image, and what hostile files do to it.

python -m bench.image.child
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from statistics import median

from curate.codec import limited
from curate.core.errors import Reject
from tests.codec import hostile, make_images

CALLS, FILES, SIDE, DEADLINE_SECONDS = 200, 500, 160, 5.0
WARM_SECONDS, COLD_SECONDS = 0.020, 1.0


def main() -> int:
    photo = make_images.encoded(make_images.gradient(64, 48), "JPEG")
    cold = _seconds(photo)
    warm = sorted(_seconds(photo) for _ in range(CALLS))
    print(f"cold start  {cold:.2f} s (at most {COLD_SECONDS:g})")
    print(
        f"warm call   {median(warm) * 1e3:.1f} ms, 95 % below {warm[CALLS * 95 // 100] * 1e3:.1f} "
        f"(at most {WARM_SECONDS * 1e3:g})"
    )
    found: Counter[str] = Counter()
    longest = 0.0
    for data in hostile.files(FILES):
        began = time.perf_counter()
        small = limited.thumbnail(data, SIDE, DEADLINE_SECONDS)
        longest = max(longest, time.perf_counter() - began)
        found[small.reason if isinstance(small, Reject) else "a thumbnail"] += 1
    print(f"{FILES} hostile files: the longest took {longest:.2f} s of {DEADLINE_SECONDS:g}")
    for what, count in found.most_common():
        print(f"  {count:4} {what}")
    return int(cold > COLD_SECONDS or median(warm) > WARM_SECONDS or longest > DEADLINE_SECONDS + 1)


def _seconds(data: bytes) -> float:
    began = time.perf_counter()
    assert isinstance(limited.thumbnail(data, SIDE), bytes)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
