"""The hybrid engine: matrix products in graphs on an executor, attention and all around it on the CPU."""
