"""``spark-submit …/appliance/spark/pipeline/__main__.py CONFIG.toml [--once]``: runs the pipeline on a cluster.

The package must be installed where tasks run, and the output's path must be the same directory for all of them.  Prints
the result as JSON.
"""

import json
import sys
from pathlib import Path

from appliance.spark.pipeline.run import run
from appliance.spark.pipeline.settings import load


def main(arguments: list[str]) -> None:
    """Run the pipeline.  Errors of :func:`run` are raised: ``spark-submit`` prints them and fails."""
    files = [argument for argument in arguments if argument != "--once"]
    if len(files) != 1:
        sys.exit("usage: spark-submit __main__.py CONFIG.toml [--once]")
    result = run(load(Path(files[0])), once="--once" in arguments)
    sys.stdout.write(json.dumps(result.as_json()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
