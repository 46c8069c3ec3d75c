"""What moves runs from state to state: one loop, elected by a lease in the database.

    loop         the passes over the runs under way, and what else is done regularly
    leader       which replica may act
    queue        which waiting run is next
    step         one step of one run: look, decide, act, write
    observe      what the workspace and the cluster say about an attempt, and for how long
    transitions  how a run's next state is written
    targets      the Ray clusters: clients and health
    progress     what the events of a running attempt add up to, and alerts
    index        the lists of runs and datasets
    hooks        webhooks when a run ends

`curate.service.states` decides.
"""
