"""librknnrt, the NPU's runtime, by ctypes: declarations, the owner of a context. Nothing is loaded at import.

Knows no models and no folders; numpy and the hybrid engine are above it.
"""
