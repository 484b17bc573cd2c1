"""Choosing an adapter and its limits, natively."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from webkv.errors import DeviceError

if sys.platform == "emscripten":
    pytest.skip("native adapters", allow_module_level=True)

from webkv.gpu import DEFAULT_LIMITS
from webkv.gpu.native import adapter_name, choose_adapter, granted_limits, list_adapters, open_native


def test_limits_stay_at_the_defaults_unless_more_is_needed() -> None:
    assert granted_limits({}, {"max-buffer-size": 1 << 20}) == dict(DEFAULT_LIMITS)


def test_limits_rise_to_what_is_needed() -> None:
    available = {"max-buffer-size": 1 << 30}
    assert granted_limits(available, {"max-buffer-size": 300 << 20})["max-buffer-size"] == 300 << 20


def test_limit_the_adapter_lacks_is_refused() -> None:
    with pytest.raises(DeviceError, match="max-buffer-size: 629145600 needed, the adapter allows 524288000"):
        granted_limits({"max-buffer-size": 500 << 20}, {"max-buffer-size": 600 << 20})


async def test_adapter_is_chosen_by_part_of_its_name() -> None:
    name = adapter_name((await list_adapters())[0])
    assert adapter_name(await choose_adapter(name[:6].upper())) == name


async def test_environment_names_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBKV_ADAPTER", "no such GPU")
    with pytest.raises(DeviceError, match="no GPU adapter matches 'no such GPU'; found: "):
        await choose_adapter()


async def test_features_the_adapter_lacks_are_not_asked_for() -> None:
    device = await open_native(features=["no-such-feature"])
    assert device.facts.features == frozenset()


def test_no_adapter_is_one_line_and_exit_code_2() -> None:
    environment = {**os.environ, "VK_ICD_FILENAMES": os.devnull, "VK_DRIVER_FILES": os.devnull}
    command = [sys.executable, "-m", "webkv", "devices"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("webkv: no GPU adapter was found; install")
    assert len(done.stderr.splitlines()) == 1
