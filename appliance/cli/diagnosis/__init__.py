"""What is wrong: with an appliance that runs (``doctor``), or with a host before one is installed (``check``)."""
