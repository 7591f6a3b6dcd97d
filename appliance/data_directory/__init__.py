"""The data directory as a whole: its small files, the version of its format, and copies of it while it is served."""

from .backup import Backup, back_up, copy_topic
from .data_format import FORMAT, check_format, take_format
from .small_files import check_small_files, foreign_partitions

__all__ = [
    "FORMAT",
    "Backup",
    "back_up",
    "check_format",
    "check_small_files",
    "copy_topic",
    "foreign_partitions",
    "take_format",
]
