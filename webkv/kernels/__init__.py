"""One function per shader: each records dispatches on a `Batch`; its numpy twin is in `kernels.reference`.

Launchers check nothing that the cache already validated; kernels clamp what could read out of a buffer.
"""
