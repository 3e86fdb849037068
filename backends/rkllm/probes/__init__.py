"""Probes of what only a board can show: each asks the library one question that its makers leave open.

Run in a process of their own (`python -P -m backends.rkllm.probes`), started by `rkserve doctor --deep`.
"""
