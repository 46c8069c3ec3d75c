"""What a step asks of an object store per shard, as requests of its protocol: slopes between two small pools.

    python -m bench.engine.requests [SHARDS SHARDS] [--json FILE]

The store is moto's server on loopback, reached through a proxy that counts. Each shard is one unit, as one of 10,000
rows is; so logs and indexes of answers count per shard too. Prices are those of a GET (and HEAD) and of a PUT (POST,
LIST); a DELETE costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path

from bench.engine import simulated
from curate.engine.run import run
from curate.engine.state import Options
from tests.core.store.object_store import forget_connections, new_bucket, used
from tests.core.store.object_store import started as store
from tests.engine.object_store_faults.proxy import started as proxied

GET_DOLLARS, PUT_DOLLARS = 0.0004 / 1000, 0.005 / 1000
SHARDS = 230_000


def counted(shards: int) -> dict[str, Counter[str]]:
    """Step -> requests by method."""
    with store() as server, used(server) as client, proxied(server) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        forget_connections()
        workspace, found = f"s3://{new_bucket(client)}/workspace", {}
        for name in simulated.STEPS:
            proxy.asked.clear()
            # the steps before it are reused, in some requests that hardly grow with the pool
            run(simulated.pipeline(name, shards, 4), workspace, options=Options(task_rows=1))
            found[name] = Counter(proxy.asked)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.engine.requests")
    parser.add_argument("shards", type=int, nargs="*", default=[8, 24])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    small, large = sorted(given.shards)
    few, many = counted(small), counted(large)
    per_shard = {}
    for name in few:
        slopes = {method: (many[name][method] - few[name][method]) / (large - small) for method in many[name]}
        per_shard[name] = {method: round(slope, 2) for method, slope in slopes.items() if abs(slope) >= 0.01}
    methods = ["GET", "HEAD", "PUT", "POST", "LIST", "DELETE"]
    print(f"| step | {' | '.join(methods)} | dollars at {SHARDS:,} shards |")
    print("|---|" + "---|" * (len(methods) + 1))
    total = 0.0
    for name, found in per_shard.items():
        cheap = found.get("GET", 0) + found.get("HEAD", 0)
        dear = found.get("PUT", 0) + found.get("POST", 0) + found.get("LIST", 0)
        dollars = SHARDS * (cheap * GET_DOLLARS + dear * PUT_DOLLARS)
        total += dollars
        print(f"| `{name}` | {' | '.join(f'{found.get(method, 0):.1f}' for method in methods)} | {dollars:,.2f} |")
    sums = [sum(found.get(method, 0) for found in per_shard.values()) for method in methods]
    print(f"| all | {' | '.join(f'{number:.1f}' for number in sums)} | {total:,.2f} |")
    if given.json:
        given.json.write_text(json.dumps(per_shard, indent=1) + "\n")


if __name__ == "__main__":
    main()
