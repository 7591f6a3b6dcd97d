"""Gives the table ``events`` to readers of Iceberg, too: the same files, in a catalogue of its own.

Nothing is written twice but lists of files.  After each commit of ``events`` a snapshot of Iceberg gets the files that
the latest version has, and loses those that it has no more; the snapshot says which version that is, and a digest of
its commit.  So a snapshot that is there already is recognised, one that was not made before a process was killed is
made next, and whatever became of ``events`` meanwhile (compaction, ``reparse``, ``forget``, a restored version) is one
step.

Iceberg has no columns by name but by number: what files call them is in the table's name mapping.  The values of
columns by which files are divided are in no file, and are given with each.  Its newest snapshots are kept, at most as
long as files are, ``output.keep_ms``; it removes no files of rows, since they are those of ``events``.

The catalogue is a file of SQLite (``[iceberg] catalogue``), or a REST catalogue, and the table's name in it
``namespace.name``.  A commit whose answer is lost is recognised by its snapshot, as one of a process that was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ... import extras
from ...errors import ApplianceError, Unavailable
from .batch_record import encode_schema
from .event_versions import EventVersions
from .output_files import LOG, OutputFiles
from .repeating import Repeating
from .settings import Settings
from .table_files import EVENTS, file_of
from .tables import owner_of
from .troubles import ICEBERG, Troubles

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

VERSION, ENTRY = "appliance.version", "appliance.entry"
"""Properties of a snapshot: the version of events, and a digest of its commit."""
PIPELINE, COLUMNS = "appliance.pipeline", "appliance.columns"
"""Properties of the table: whose it is, and the columns of events that it was made for."""
CATALOGUE: Final = "default"
"""A file of SQLite may have several catalogues: readers name this one, or none."""
SQLITE: Final = b"SQLite format 3\0"
"""What its files begin with."""
MAPPING: Final = "schema.name-mapping.default"
METADATA: Final = "iceberg"
"""The directory for lists of files, in that of the output."""
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
SNAPSHOTS_MAX: Final = 100
"""There are at most twice as many."""
WAIT_S: Final = 1.0
"""How often it looks for new commits."""
REQUEST_S_MAX: Final = 30.0
"""How long a REST catalogue may take to answer."""
CAUSE_CHARACTERS_MAX: Final = 300
HOW_TO_LOG_IN: Final = (
    "what logs in is in PYICEBERG_CATALOG__DEFAULT__CREDENTIAL, or __TOKEN, of the process that runs the pipeline"
)
log = logging.getLogger(__name__)


class _File(NamedTuple):
    """A file of events; ``partition``: values by column."""

    path: str
    bytes: int
    rows: int
    partition: Mapping[str, str | None]


def fault_of_iceberg(settings: Settings) -> str:
    """Why there can be no such table, or ""."""
    if not settings.iceberg.catalogue:
        return ""
    if not OutputFiles(settings.output).local:
        return "[iceberg] needs an output.path on a file system"
    if extras.missing("pyiceberg", "sqlalchemy"):
        return f"[iceberg] needs pyiceberg: {extras.install('iceberg')}"
    place = settings.iceberg.file
    if place is not None and place.exists() and not _may_be_catalogue(place):
        return f"[iceberg] catalogue: {place} is no file of SQLite: name one that is not there yet, and it is made"
    return ""


def _may_be_catalogue(place: Path) -> bool:
    if not place.is_file():
        return False
    with place.open("rb") as file:
        return file.read(len(SQLITE)) in (b"", SQLITE)


class IcebergTable:
    """The table of one pipeline; ``identity``: that of its output."""

    def __init__(self, settings: Settings, identity: str) -> None:
        self._settings = settings
        self._identity = identity
        self._files = OutputFiles(settings.output)
        self._lists = f"file://{self._files.uri(METADATA)}"
        with _ErrorsOf(settings):
            self._catalogue = self._opened(settings.iceberg.file)
        self._name = settings.iceberg.table
        self._told: dict[str, str] = {}
        """What the last snapshot that was made or found here says."""

    def _opened(self, place: Path | None) -> Catalog:
        if place is None:
            return _rest_catalogue(self._settings.iceberg.catalogue)
        from pyiceberg.catalog.sql import SqlCatalog

        place.parent.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(CATALOGUE, uri=f"sqlite:///{place}", warehouse=self._lists)

    def follow(self) -> int | None:
        """Give the table the files of the latest version of events.  Returns the version; None before the first one.

        Raises:
            ApplianceError: somebody else writes the table, or it is another pipeline's; or the catalogue is away, or
                refuses what it is asked for.
        """
        with _ErrorsOf(self._settings):
            return self._follow()

    def _follow(self) -> int | None:
        from pyiceberg.exceptions import CommitFailedException

        if not self._files.exists(f"{EVENTS}/{LOG}"):
            return None
        versions = EventVersions(self._settings.output)
        told = {VERSION: str(versions.latest), ENTRY: str(versions.entry(versions.latest))}
        if told != self._told:
            events = self._files.delta_table(EVENTS, versions.latest)
            table = self._table(versions.schema, versions.partitioned_by)
            snapshot = table.current_snapshot()
            if snapshot is None or not snapshot.summary or any(snapshot.summary[key] != told[key] for key in told):
                try:
                    self._commit(table, {file.path: file for file in self._listed(events)}, told)
                except CommitFailedException as error:
                    raise ApplianceError(f"Iceberg table {self._name}: somebody else writes it: {error}") from None
            self._told = told
        return versions.latest

    def _table(self, schema: pa.Schema, partitioned_by: Sequence[str]) -> Table:
        """The table with these columns; made anew if the type of one has changed, since all files have changed then."""
        from pyiceberg.exceptions import NoSuchTableError, ValidationError

        self._catalogue.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            table = self._catalogue.load_table(self._name)
        except NoSuchTableError:
            return self._created(schema, partitioned_by)
        if table.properties.get(PIPELINE) != self._identity:
            raise ApplianceError(f"Iceberg table {self._name} is not of this pipeline: choose another iceberg.table")
        if table.properties.get(COLUMNS) == encode_schema(schema):
            return table
        if COLUMNS not in table.properties:  # whoever made it was killed before it was complete
            self._catalogue.drop_table(self._name)
            return self._created(schema, partitioned_by)
        try:
            with table.transaction() as changing:
                with changing.update_schema() as update:
                    update.union_by_name(schema)
                names = changing.table_metadata.schema().name_mapping.model_dump_json()
                changing.set_properties({MAPPING: names, COLUMNS: encode_schema(schema)})
        except (ValidationError, ValueError) as error:
            log.warning("Iceberg table %s is made anew: %s", self._name, error)
            self._catalogue.drop_table(self._name)
            return self._created(schema, partitioned_by)
        return self._catalogue.load_table(self._name)

    def _created(self, schema: pa.Schema, partitioned_by: Sequence[str]) -> Table:
        where = f"{self._lists}/{self._name.replace('.', '/')}"  # a catalogue would choose a place of its own
        owned = PROPERTIES | {PIPELINE: self._identity}
        table = self._catalogue.create_table(self._name, schema, location=where, properties=owned)
        with table.transaction() as changing:
            with changing.update_spec() as spec:
                for name in partitioned_by:
                    spec.add_identity(name)
            names = table.schema().name_mapping.model_dump_json()
            changing.set_properties({MAPPING: names, COLUMNS: encode_schema(schema)})
        return self._catalogue.load_table(self._name)

    def _listed(self, events: Any) -> Iterator[_File]:
        actions = pa.table(events.get_add_actions(flatten=True)).to_pylist()
        columns = events.metadata().partition_columns
        for row in actions:
            path = f"{EVENTS}/{file_of(row['path'])}"
            place = f"file://{self._files.uri(path)}"  # a location is quoted by nobody
            partition = {name: row[f"partition.{name}"] for name in columns}
            yield _File(place, row["size_bytes"], row["num_records"], partition)

    def _commit(self, table: Table, files: Mapping[str, _File], told: dict[str, str]) -> None:
        present = {task.file.file_path: task.file for task in table.scan().plan_files()}
        with table.transaction() as changing, changing.update_snapshot(told).overwrite() as update:
            for path, file in present.items():
                if path not in files:
                    update.delete_data_file(file)
            for path, added in files.items():
                if path not in present:
                    update.append_data_file(_data_file(table, added))
        self._expire(table)

    def _expire(self, table: Table) -> None:
        """Leave the newest snapshots, and remove the lists of files that only others have.

        A snapshot is an entry of the metadata, which is written anew with each: all of a week would be far more bytes
        than the events.  So many go at once that looking for their lists costs little for each.
        """
        oldest_ms = int(time.time() * 1000) - self._settings.output.keep_ms
        newest = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0, reverse=True)
        most = SNAPSHOTS_MAX if len(newest) > 2 * SNAPSHOTS_MAX else len(newest)
        kept = [newest[0], *(snapshot for snapshot in newest[1:most] if snapshot.timestamp_ms >= oldest_ms)]
        gone = {snapshot.snapshot_id for snapshot in newest} - {snapshot.snapshot_id for snapshot in kept}
        if not gone:
            return
        table.maintenance.expire_snapshots().by_ids(list(gone)).commit()
        needed = {Path(snapshot.manifest_list).name for snapshot in kept}
        needed |= {Path(manifest.manifest_path).name for snapshot in kept for manifest in snapshot.manifests(table.io)}
        first_ms = min(snapshot.timestamp_ms for snapshot in kept)
        for path in Path(table.location().removeprefix("file://"), "metadata").glob("*.avro"):
            # What is newer may be of a snapshot that another process makes just now.
            if path.name not in needed and path.stat().st_mtime * 1000 < first_ms:
                path.unlink(missing_ok=True)


class _ErrorsOf:
    """Raises Unavailable for what a REST catalogue, or the network before it, raises."""

    def __init__(self, settings: Settings) -> None:
        self._url = "" if settings.iceberg.file is not None else settings.iceberg.catalogue

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not self._url:
            return
        from pyiceberg.exceptions import RESTError
        from requests import RequestException

        if isinstance(error, RESTError | RequestException):
            said = " ".join(str(error).split())[:CAUSE_CHARACTERS_MAX]
            raise Unavailable(f"the catalogue {self._url}: {said}: {HOW_TO_LOG_IN}") from None


def _rest_catalogue(url: str) -> Catalog:
    """A REST catalogue; what logs in comes from the environment, as pyiceberg reads it."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import Config
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter

    class Bounded(HTTPAdapter):
        def send(self, request: PreparedRequest, *given: Any, **more: Any) -> Response:
            return super().send(request, *given, **more | {"timeout": REQUEST_S_MAX})

    class Catalogue(RestCatalog):
        def _create_session(self) -> Session:
            session = super()._create_session()  # whose requests would wait without end
            for scheme in ("http://", "https://"):
                session.mount(scheme, Bounded())
            return session

    own: dict[str, Any] = dict(Config().get_catalog_config(CATALOGUE) or {})
    return Catalogue(CATALOGUE, **own | {"uri": url})


def _data_file(table: Table, file: _File) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*(file.partition[field.name] for field in table.spec().fields)),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def follow_iceberg(settings: Settings) -> None:
    """Give the table of Iceberg, if there is one, what ``events`` has now.  Raises as :meth:`IcebergTable.follow`."""
    owner = owner_of(settings)
    if settings.iceberg.catalogue and owner is not None:
        IcebergTable(settings, owner.identity).follow()


class IcebergKeeper:
    """Follows ``events`` while a pipeline runs, in a thread of its own, and once more at the end.

    What is wrong does no harm to the pipeline: the next look tries again.
    """

    def __init__(self, settings: Settings, identity: str) -> None:
        self._settings, self._identity = settings, identity
        self._table: IcebergTable | None = None
        self._troubles = Troubles(settings)
        self._looks = Repeating("iceberg", self.look, WAIT_S)
        self.remark = ""
        """Why the table is behind, or ""."""

    def __enter__(self) -> IcebergKeeper:
        if self._settings.iceberg.catalogue:
            self._looks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._looks.stop()
        self.look()

    def look(self) -> None:
        if not self._settings.iceberg.catalogue:
            return
        try:
            self._table = self._table or IcebergTable(self._settings, self._identity)
            self._table.follow()
            self.remark = ""
            self._troubles.note(ICEBERG, "")
        except Exception as error:  # whatever it is, the thread goes on, and a run has its result
            text = f"the Iceberg table is behind: {str(error) or type(error).__name__}"
            if text != self.remark:
                log.warning("%s", text)
            self.remark = text
            self._troubles.note(ICEBERG, text)
