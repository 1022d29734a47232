"""A user's own log: a table with any column names, described by a `LogSchema`."""
