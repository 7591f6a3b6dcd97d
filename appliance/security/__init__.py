"""Who may do what, as pure values: users, rights, quotas, secrets, and the audit log.  No sockets, no processes."""
