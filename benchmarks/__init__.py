"""How fast webkv is, as ratios measured side by side in one process: `python -m benchmarks`."""
