"""Adds columns that are looked up by a column of the event: in a table, or, for addresses, in a GeoIP database.

====================  ===============================================================================================
file                  what it is
====================  ===============================================================================================
``*.csv``             with a head; its columns are texts, as they are written, and null where nothing is
``*.parquet``
a directory           a Delta table, such as that of a view
``*.mmdb``            a database of networks in MaxMind's format (GeoLite2, DB-IP, ipinfo); the key has addresses
====================  ===============================================================================================

``sql`` is a query by DuckDB over the table, which it calls ``file``: its answer takes the table's place.  What is
looked up is text: numbers as they are written, lists and objects as JSON, null where nothing is known.  A table is in
memory while a task works; of a database only what is asked for, and up to :data:`KNOWN_MAX` addresses are remembered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ... import extras
from ...errors import BadValue
from .json_parser import value_at
from .quality import connected
from .settings import Lookup

NETWORKS: Final = ".mmdb"
KNOWN_MAX: Final = 100_000


class ColumnLookup(Protocol):
    """``columns``: the names of those that it adds, which are texts."""

    columns: Sequence[str]

    def add(self, columns: dict[str, pa.Array]) -> None:
        """Add the columns to those of some events."""


def build_lookup(settings: Lookup, events: Mapping[str, pa.DataType]) -> ColumnLookup:
    """The look-up of these settings, for events with these columns.

    Raises:
        BadValue: the file cannot be read, or does not fit the settings or the events.
    """
    where = f"lookup {settings.file}"
    if settings.key not in events:
        raise BadValue(f"{where}: key {settings.key!r} must be a column of the file and of the events")
    if settings.file.endswith(NETWORKS):
        made: ColumnLookup = NetworkLookup(settings, where)
    else:
        made = TableLookup(settings, where)
    for name in made.columns:
        if name in events:
            raise BadValue(
                f"{where}: events have a column {name!r} already: columns = {{ other = {name!r} }} renames it"
            )
    return made


class TableLookup:
    """Looks up rows of a table, whose key is unique."""

    def __init__(self, settings: Lookup, where: str) -> None:
        table = _table(settings, where)
        if settings.key not in table.column_names:
            raise BadValue(f"{where}: key {settings.key!r} must be a column of the file and of the events")
        renamed = settings.columns or [name for name in table.column_names if name != settings.key]
        sources = dict(renamed) if isinstance(renamed, dict) else {name: name for name in renamed}
        for name in sources.values():
            if name not in table.column_names:
                raise BadValue(f"{where}: the file has no column {name!r}: it has {', '.join(table.column_names)}")
        table = table.filter(pc.is_valid(table.column(settings.key)))
        keys = _texts(table.column(settings.key))
        if pc.count_distinct(keys).as_py() != len(keys):
            raise BadValue(f"{where}: key {settings.key!r} is not unique")
        self._key, self._keys = settings.key, keys
        self._values = {name: _texts(table.column(source)) for name, source in sources.items()}
        self.columns: Sequence[str] = tuple(sources)

    def add(self, columns: dict[str, pa.Array]) -> None:
        place = pc.index_in(columns[self._key].cast(pa.string()), self._keys, skip_nulls=True)
        columns.update({name: values.take(place) for name, values in self._values.items()})


class NetworkLookup:
    """Looks up addresses in a database of networks; a text that is no address is in none."""

    def __init__(self, settings: Lookup, where: str) -> None:
        if extras.missing("maxminddb"):
            raise BadValue(f"{where} needs maxminddb, here and where tasks run: {extras.install('geoip')}")
        import maxminddb

        if settings.sql:
            raise BadValue(f"{where}: sql is for tables, and a database of networks is none")
        if not isinstance(settings.columns, dict) or not settings.columns:
            raise BadValue(
                f"{where}: say which of its fields become columns: columns = {{ country = 'country.iso_code' }}"
            )
        try:
            self._database = maxminddb.open_database(settings.file)
        except (OSError, maxminddb.InvalidDatabaseError) as error:
            raise BadValue(f"{where}: {error}") from None
        self._key = settings.key
        self._paths = [path.split(".") for path in settings.columns.values()]
        self._nothing = (None,) * len(self._paths)
        self._known: dict[str | None, tuple[str | None, ...]] = {}
        self.columns: Sequence[str] = tuple(settings.columns)

    def add(self, columns: dict[str, pa.Array]) -> None:
        addresses = columns[self._key].cast(pa.string()).dictionary_encode()
        if isinstance(addresses, pa.ChunkedArray):
            addresses = addresses.combine_chunks()
        entries = [self._of(address) for address in addresses.dictionary.to_pylist()]
        for number, name in enumerate(self.columns):
            values = pa.array([entry[number] for entry in entries], pa.string())
            columns[name] = values.take(addresses.indices)

    def _of(self, address: str | None) -> tuple[str | None, ...]:
        if (values := self._known.get(address)) is not None:
            return values
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        try:
            entry = self._database.get(address or "")
            # An address of IPv4 as a socket of IPv6 has it is in no network of most databases.
            if entry is None and address and address.lower().startswith("::ffff:"):
                entry = self._database.get(address[len("::ffff:") :])
        except ValueError:
            entry = None
        values = self._nothing if entry is None else tuple(_text(value_at(entry, path)) for path in self._paths)
        self._known[address] = values
        return values


def _table(settings: Lookup, where: str) -> pa.Table:
    from deltalake.exceptions import DeltaError

    try:
        table = _read(Path(settings.file))
    except (OSError, pa.ArrowInvalid, DeltaError) as error:
        raise BadValue(f"{where}: {error}") from None
    names = table.column_names
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise BadValue(f"{where}: the file has several columns {twice[0]!r}")
    if not settings.sql:
        return table
    if extras.missing("duckdb"):
        raise BadValue(f"{where}: sql needs duckdb, here and where tasks run: {extras.install('sql')}")
    import duckdb

    inner = connected()
    inner.register("file", table)
    try:
        relation = inner.sql(settings.sql)
        if relation is None:
            raise BadValue(f"{where}: sql is no query: give one, as `select host, owner from file`")
        return relation.to_arrow_table()
    except duckdb.Error as error:
        raise BadValue(f"{where}: sql: {' '.join(str(error).split())}") from None


def _read(path: Path) -> pa.Table:
    if path.is_dir():
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(str(path)).to_pyarrow_table()
        except TableNotFoundError:
            raise OSError(f"the directory {path} is no Delta table") from None
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    # Whoever guesses types takes 00123 for 123, 1.10 for 1.1, and the country NA for nothing.
    with pyarrow.csv.open_csv(path) as head:
        texts = dict.fromkeys(head.schema.names, pa.string())
    options = pyarrow.csv.ConvertOptions(column_types=texts, null_values=[""], strings_can_be_null=True)
    return pyarrow.csv.read_csv(path, convert_options=options)


def _texts(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_nested(column.type):
        return pa.array(map(_text, column.to_pylist()), pa.string())
    return column.cast(pa.string()).combine_chunks()


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
