"""The HTTP process and the command line. Imports the types and messages of backends, never an engine."""
