"""Measures an appliance, beside what people would use instead and beside the limits of the machine.

``appliance bench`` runs it on an operator's host, ``make bench`` before a release.  The modules::

    runner                which questions there are; runs them
    questions             one module per question: its workloads
    harness               sides take turns; medians, shares of limits, what was skipped
    kafka_side, brokers, kafka_clients, queue_peers
                          what takes turns: brokers that are started here, with their clients
    limits                what the machine itself can do, in the same run
    group_members, connection_crowd
                          programs: the members of a group, many connections
    stamps                the messages, and the sum that shows that all arrived
    measures, quantities  what was measured, as JSON; names and units
    result_tables, result_charts, page
                          how it is shown
    local_appliance       starts an appliance as a process (tests do it with this, too)
    c                     programs in C: the client with librdkafka, the empty server

Every message is counted: a run that loses, changes, repeats or reorders messages has no result.
"""
