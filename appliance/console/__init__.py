"""The console: one page about topics, groups, messages and troubles, in a process of its own.

Reading order::

    value_decoding    how messages are shown: decoded, and masked
    message_search    looks for messages of topics, in bounded steps with a cursor
    download          a file of what a search finds
    sql_queries       runs SQL, in bounded processes that may read what the visitor may
    history           points of the last hours, for the charts
    topic_rows        topics and partitions, from the catalog and shared memory
    observer          polls the state of the appliance while a page is open, at a limited cost
    live_events       sends what has changed to each page (server-sent events)
    console_sessions  logins: passwords, cookies, rate limits
    visitors          who a request comes from, and what it may see and do
    administration    admin verbs that the page asks for: topics, groups, users, rules, quotas
    changes           other changes of who is logged in: produce a message, move offsets
    guards            what every request and every answer has to fulfil
    page_files        the files of the page
    application       the addresses that the page calls
    web_server        the HTTP server and its bounds
    console_process   the side process: creates all of it, serves until the supervisor stops it

The process talks to its own appliance through the Unix socket in the data directory, where it may do everything.  So it
checks the rights of its visitors itself, by the rules of the native listener (``security/api_rights``), and nothing
reaches the client below without such a check.  Visitors read; they change something only after a login.

The page is static: HTML, CSS and JavaScript in ``page``, without a build step.  Its content security policy allows no
inline script and, with Trusted Types, no markup made from text: text of messages stays text.
"""
