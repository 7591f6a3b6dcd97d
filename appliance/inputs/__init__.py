"""Takes logs in: files as they grow and rotate, the journal, syslog, HTTP; each input is a process of its own.

Reading order: ``machinery`` (what all inputs share), ``process`` (the loop), ``outlet`` (sends messages, and tells when
they are flushed), ``in_order`` and ``positions`` (how far a source is read), ``ledger`` (what was read, refused, lost).

Then one kind, from its first module:

- files: ``files`` has a table of all cases; ``generation``, ``generations`` and ``recognition`` say which life of a
  file is which, ``rotation``, ``rotated_files``, ``packed`` and ``unpacking`` what rotation makes of it;
  ``generation_reader`` and ``lines`` make messages of bytes.
- the journal: ``journal``, ``journal_blocks``, ``journal_export``.
- syslog: ``syslog``, ``syslog_datagrams``, ``sender_streams``, ``syslog_format`` (bytes to messages), ``relp``.
- HTTP: ``http``, ``http_connection``, ``bodies``, and a module for each protocol of shippers.

``intake`` and ``syslog_delivery`` answer senders once their messages are flushed.  ``checks``, ``line_search``,
``ship`` and ``service_rights`` are for the commands.
"""
