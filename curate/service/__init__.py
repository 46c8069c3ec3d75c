"""The service: people submit recipes over HTTP, and watch, stop and resume their runs on Ray clusters.

One folder for each subject. Its files have the operations, which are routes of the API and functions that the pages
and commands call, with the JSON that they take and answer. An operation checks the role first, and a write is in the
audit.

    runs         recipes are checked and submitted; runs are listed, shown, stopped and resumed
    datasets     datasets, tags, lineage, samples; pins, tombstones, storage and gc of a workspace
    people       users, roles, tokens, quotas, and the audit
    places       workspaces, targets, and what recipes may use
    operate      metrics and readiness
    pages        HTML for people

What they are made of:

    rest         what all routes have in common: errors, ETags, cursors, headers, the description of the API
    service      the parts below, built once per process
    reconcile    one loop, elected by a lease in the database, that moves runs from state to state
    states       the state machine of a run, as one function
    watch        live status and events of runs, read from their workspaces once, however many watch
    auth         tokens, browser sessions, roles, rate limits, audit
    policy       what a recipe may do when it comes over HTTP; checked in a limited subprocess
    database     users, grants, tokens, submissions, tags, audit, and an index of runs and datasets that can be rebuilt
    kept         results that take long
    settings     what the operator of the service decides: a YAML file

    app          all of it as one ASGI application
    serving      the application on a socket; embedded: with SQLite and a local Ray, for `make serve`
    commands     `curate service …`

The workspace is the truth about runs and data; the database never stores events. The service imports `curate.api` and
`curate.core`, never the engine.
"""
