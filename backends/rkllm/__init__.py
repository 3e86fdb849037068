"""The vendor's language-model runtime, librkllmrt 1.3.x, as a backend.

In layers: `enums`, `structs` and `raw` declare the C interface and nothing else; `library` opens a file,
`session` owns a handle; `backend` is what the worker sees. C names stay in the first layer.
"""
