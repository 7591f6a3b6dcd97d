"""Reads and writes the files of an output, by names relative to its path: on a file system, or in an object store.

An object store (``s3://``, and what pyarrow has file systems for: ``gs://``, ``abfs://``) replaces an object as a
whole, and cannot rename, which Delta tables do without.  Keys of access come from the environment, the host's role
or its files, as for every tool of the store; ``output.storage`` has the rest, under the names that delta-rs knows::

    AWS_ENDPOINT_URL    address of a server that is not Amazon's, as ``http://127.0.0.1:9000``
    AWS_ALLOW_HTTP      "true", if that is not https
    AWS_REGION
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN     only where the environment cannot have them
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ...durable_files import replace_file
from ...table_faults import RESTORE, told_of
from .settings import Output, is_url

LOG: Final = "_delta_log"
SAMPLE_ROWS: Final = 4096
"""So many rows of a file show which columns repeat."""


class OutputFiles:
    """The files under the path of an output."""

    def __init__(self, settings: Output) -> None:
        self._path = settings.path.rstrip("/")
        self._compression = settings.compression
        self.options: dict[str, str] | None = None
        """Of the storage, for delta-rs."""
        if is_url(settings.path):
            self.options = dict(settings.storage)
            self._fs: Any = _object_store(self._path, self.options)
        else:
            self._fs = fs.SubTreeFileSystem(self._path, fs.LocalFileSystem())

    @property
    def local(self) -> bool:
        return self.options is None

    def uri(self, name: str = "") -> str:
        return f"{self._path}/{name}" if name else self._path

    def read(self, name: str) -> bytes | None:
        """The content; None if there is no such file."""
        if not self.exists(name):
            return None
        with self._fs.open_input_stream(name) as file:
            return bytes(file.read())

    def write(self, name: str, content: str) -> None:
        """Replace the content, durably and at one moment."""
        if self.local:
            Path(self._path).mkdir(parents=True, exist_ok=True)
            replace_file(Path(self.uri(name)), content.encode(), mode=None)
            return
        with self._fs.open_output_stream(name) as file:
            file.write(content.encode())

    def exists(self, name: str) -> bool:
        return bool(self._fs.get_file_info(name).type != fs.FileType.NotFound)

    def write_table(self, name: str, rows: pa.Table) -> tuple[int, pq.FileMetaData]:
        """Write a Parquet file, durably.  Returns its size in bytes, and its footer."""
        with self.create(name) as file:
            pq.write_table(rows, file, compression=self._compression, use_dictionary=repetitive(rows))
        return self.closed(name)

    def create(self, name: str) -> Any:
        """A new file, to be written from its beginning to its end."""
        if self.local:
            Path(self.uri(name)).parent.mkdir(parents=True, exist_ok=True)
        return self._fs.open_output_stream(name)

    def closed(self, name: str) -> tuple[int, pq.FileMetaData]:
        """Make a file that was created durable.  Returns its size in bytes, and its footer."""
        if self.local:
            with Path(self.uri(name)).open("rb") as file:
                os.fsync(file.fileno())
        return int(self._fs.get_file_info(name).size), pq.read_metadata(name, filesystem=self._fs)

    def open_table(self, name: str) -> TableFile:
        return TableFile(pq.ParquetFile(name, filesystem=self._fs))

    def delta_table(self, name: str, version: int | None = None, damaged: str = RESTORE) -> Any:
        """Open a Delta table.  ``damaged``: what to do if its log cannot be read.

        Raises:
            StorageFault: it is no table, or a damaged one.
        """
        from deltalake import DeltaTable

        with told_of(self.uri(name), damaged):
            return DeltaTable(self.uri(name), version=version, storage_options=self.options)

    def remove(self, name: str) -> None:
        self._fs.delete_file(name)


class TableFile:
    """A Parquet file, of which texts and bytes are plain ones of Arrow, whoever has written it.

    delta-rs writes rows that it has filtered, as those that a delete leaves, as Arrow's views.  They are no other
    type in Parquet, but few functions of Arrow take them, and files with and without them do not fit together.
    """

    def __init__(self, opened: pq.ParquetFile) -> None:
        self._opened = opened
        self.schema = _without_views(opened.schema_arrow)

    @property
    def footer(self) -> pq.FileMetaData:
        return self._opened.metadata

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """These columns, or all."""
        rows = self._opened.read(columns)
        return rows.cast(_without_views(rows.schema))

    def iter_batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in self._opened.iter_batches(batch_rows):
            yield batch.cast(self.schema)


def _without_views(schema: pa.Schema) -> pa.Schema:
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([field.with_type(plain.get(field.type, field.type)) for field in schema])


def repetitive(rows: pa.Table) -> list[str]:
    """The columns whose values repeat, as Parquet names them: a dictionary makes others larger, and slower to write."""
    sample = rows.take(pa.array(np.arange(0, len(rows), 1 + len(rows) // SAMPLE_ROWS)))
    columns: list[str] = []
    for field in sample.schema:
        if pa.types.is_map(field.type):
            columns += (f"{field.name}.key_value.{leaf}" for leaf in ("key", "value"))
        elif not pa.types.is_nested(field.type) and 2 * pc.count_distinct(sample.column(field.name)).as_py() <= len(
            sample
        ):
            columns.append(field.name)
    return columns


def with_dictionaries(footer: pq.FileMetaData) -> list[str]:
    """The columns of a file that have dictionaries."""
    group = footer.row_group(0) if footer.num_row_groups else None
    chunks = [group.column(number) for number in range(group.num_columns)] if group is not None else []
    return [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]


def _object_store(url: str, options: Mapping[str, str]) -> Any:
    if urlsplit(url).scheme not in ("s3", "s3a"):
        store, path = fs.FileSystem.from_uri(url)
        return fs.SubTreeFileSystem(path, store)
    variables = {
        key.upper(): value for key, value in {**os.environ, **options}.items() if key.upper().startswith("AWS_")
    }
    endpoint = urlsplit(variables.get("AWS_ENDPOINT_URL", ""))
    chosen: dict[str, Any] = {
        "access_key": variables.get("AWS_ACCESS_KEY_ID"),
        "secret_key": variables.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": variables.get("AWS_SESSION_TOKEN"),
        "region": variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"),
        "endpoint_override": endpoint.netloc,
        "scheme": endpoint.scheme,
    }
    parts = urlsplit(url)
    store = fs.S3FileSystem(**{name: value for name, value in chosen.items() if value})
    return fs.SubTreeFileSystem(parts.netloc + parts.path, store)
