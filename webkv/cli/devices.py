"""`webkv devices`: the adapters there are, and which one would be used."""

from __future__ import annotations

from argparse import Namespace

from webkv.cli.console import emit, human_size
from webkv.gpu.native import adapter_name, choose_adapter, list_adapters


async def devices(arguments: Namespace) -> int:
    """List adapters, the one webkv would use first marked with `*`."""
    chosen = adapter_name(await choose_adapter())
    if arguments.quiet:
        return 0
    for adapter in await list_adapters():
        name, limits = adapter_name(adapter), adapter.limits
        kind = str(adapter.info.get("adapter_type"))
        binding, features = limits["max-storage-buffer-binding-size"], sorted(adapter.features)
        used = name == chosen
        if arguments.json:
            emit("device", name=name, type=kind, used=used, max_binding=binding, features=features)
        else:
            extras = [f for f in features if f in ("shader-f16", "subgroup", "subgroups")]
            print(f"{'*' if used else ' '} {name}: {kind}, bindings up to {human_size(binding)}", end="")
            print(f", {', '.join(extras)}" if extras else "")
    return 0
