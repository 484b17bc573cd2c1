"""Inside the page: run the files that the runner outside deals out, and hand it each report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings

from tests.support import examples


class _Dealt:
    """Collects the chosen tests, asks for one file after the other, and sends what came of each test."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = set(ids)
        self._reports: list[Any] = []
        self._config: Any = None

    def pytest_configure(self, config: Any) -> None:
        self._config = config

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self._ids]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool:
        import outside
        from pyodide.ffi import run_sync

        files: dict[str, list[Any]] = {}
        for item in session.items:
            files.setdefault(item.nodeid.split("::")[0], []).append(item)
        while file := run_sync(outside.take()):
            items = files.get(file, [])
            for item, after in zip(items, [*items[1:], None], strict=False):
                self._send(item.nodeid)
                item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
            self._send("")
        return True

    def _send(self, running: str) -> None:
        """One message per test: a crossing to the runner costs as much as many a test."""
        import outside

        outside.tell("ran", json.dumps([running, self._reports], default=str))
        self._reports = []

    def _packed(self, report: Any) -> Any:
        return self._config.hook.pytest_report_to_serializable(config=self._config, report=report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._reports.append(self._packed(report))

    def pytest_collectreport(self, report: Any) -> None:
        import outside

        if not report.passed:
            outside.tell("collected", json.dumps(self._packed(report), default=str))


def run(ids_json: str) -> None:
    """Run the tests with these ids; the reports leave through the module `outside` of the worker."""
    settings.register_profile("page", max_examples=examples(100), deadline=None)
    settings.load_profile("page")
    ids = json.loads(ids_json)
    files = sorted({test.split("::")[0] for test in ids})
    options = [
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "--rootdir=/checkout",
        "-c",
        "/checkout/pyproject.toml",
    ]
    pytest.main([*options, *files], plugins=[_Dealt(ids)])
