"""Who may do what, as pure values: users, logins, rights, quotas, secrets, the audit log.  No sockets, no processes."""
