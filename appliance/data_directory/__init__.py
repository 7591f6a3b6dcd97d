"""The data directory as a whole: the version of its format, and copies of it while an appliance serves it."""

from .backup import Backup, back_up
from .data_format import FORMAT, check_format, take_format

__all__ = ["FORMAT", "Backup", "back_up", "check_format", "take_format"]
