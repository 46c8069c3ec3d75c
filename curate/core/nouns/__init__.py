"""The nouns of a workspace, and where each is stored.

A noun is committed once its `manifest.json` exists. `shards.parquet` beside it lists the noun's files. Readers follow
manifests only, so they never see the files of an unfinished build.

    pools/<namespace>/shards/<shard>.tar + .parquet      shards, by content id
    pools/<namespace>/portions/<portion>.json            the shard that a portion of a source became
    pools/<namespace>/keys/<shards>/<range>.parquet      shard and row of each key
    pools/<namespace>/versions/<pool>/                   a pool: manifest + shards.parquet
    pools/<namespace>/derived/<fingerprint>/<shard>/     children of a pool shard: numbered tars and tables
    facts/<op>/<stage>/<fingerprint>/<shard>/000001.parquet   facts about a shard's rows: numbered tables
    facts/<op>/<stage>/<fingerprint>/versions/<digest>/  the tables that a run has read: manifest + shards.parquet
    facts/<op>/<stage>/index/                            costly stages: table and row of the answer to an input
    facts/<op>/<stage>/log/<fingerprint>/                answers of unfinished units: segments by worker
    masks/<chain>/<shard>-<tables>.parquet               rows alive at each point of a pass; reasons of the others
    masks/<chain>/versions/<digest>/                     the mask of one pool version: manifest + shards.parquet
    artifacts/<op>/<fingerprint>/                        tables, arrays and JSON files, manifest
    artifacts/<op>/<fingerprint>/<name>/<part>.npz       arrays that the steps of a Fit stored under a name
    artifacts/<op>/partials/<fingerprint>/<shard>-<content>.parquet   states of a Reduce
    selections/<op>/<fingerprint>/                       lines by shard, quotas, manifest + shards.parquet
    datasets/<name>/<fingerprint>/                       tars, indexes, manifest
"""
