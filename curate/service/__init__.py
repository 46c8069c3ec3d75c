"""The service: people submit recipes over HTTP, and watch, stop and resume their runs on Ray clusters.

    settings     what the operator of the service decides: a YAML file
    database     users, grants, tokens, submissions, tags, audit, and an index of runs and datasets that can be rebuilt
    auth         tokens, browser sessions, roles, rate limits, audit
    policy       what a recipe may do when it comes over HTTP; checked in a limited subprocess
    states       the state machine of a run, as one function
    queue        which waiting run starts next, and why the others wait
    reconcile    one loop, elected by a lease in the database, that moves runs from state to state
    watch        live status and events of runs, read from their workspaces once, however many watch
    actions      what can be asked of the service; checks roles, writes the audit; the API and the pages call it
    shapes       the JSON of the API
    rest, pages  HTTP: the API under /api/v1, and the pages
    operate      metrics, health, alerts, backup
    app          all of it as one ASGI application
    serving      the application on a socket; embedded: with SQLite and a local Ray, for `make serve`
    commands     `curate service …`

The workspace is the truth about runs and data; the database never stores events. The service imports `curate.api` and
`curate.core`, never the engine.
"""
