"""`rkserve doctor --deep`: probes in processes of their own, conducted from here. Imports no engine."""
