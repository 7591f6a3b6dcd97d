"""One module per question: its docstring asks it, ``TITLE`` heads its results, ``run`` measures.

``ROUND_S``: about how long one round takes on two processors with Kafka beside the appliance, in seconds.
"""
