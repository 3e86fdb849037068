"""The HTTP process and the command line. Imports backends.base and backends.protocol, never an engine."""
