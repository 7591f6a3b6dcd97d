"""The file of a pipeline as an argument of commands, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import extras
from ..errors import ConfigFault
from ..owners import refuse_others_directory
from . import target

if TYPE_CHECKING:
    from ..spark.pipeline.settings import Settings

PipelineArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", readable=False, help="What to read, how to parse it, where to write.")
]


def load(config: Path, data: Path | None, connect: str | None) -> Settings:
    """The settings of the file.  An appliance named on the command line replaces the file's.

    Raises:
        ConfigFault: Spark is not installed, or the file is wrong.
    """
    if missing := extras.missing("pyspark", "pyarrow", "numpy"):
        raise ConfigFault(f"the pipeline needs {', '.join(missing)}: {extras.install('spark')}")
    import msgspec

    from ..spark.pipeline.settings import load as load_file

    try:
        settings = load_file(config)
    except ConfigFault as error:
        raise type(error)(f"{error}\n  `appliance pipeline example` shows what there is") from None
    places = [str(settings.state_dir), settings.output.path]
    if settings.iceberg.file is not None:
        places.append(str(settings.iceberg.file.parent))
    for directory in places:
        if "://" not in directory:  # not in an object store
            refuse_others_directory(Path(directory))
    if data is None and connect is None:
        return settings
    pipeline = msgspec.structs.replace(settings.pipeline, bootstrap=target.address(data, connect))
    return msgspec.structs.replace(settings, pipeline=pipeline)
