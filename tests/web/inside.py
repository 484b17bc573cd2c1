"""Inside the page: run the chosen tests and hand each report to the runner outside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings


class _Reporter:
    """Keeps the chosen tests and sends every report, and every file that was skipped or failed as a whole."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = set(ids)
        self._config: Any = None

    def pytest_configure(self, config: Any) -> None:
        self._config = config

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self._ids]

    def _send(self, kind: str, report: Any) -> None:
        import outside

        hook = self._config.hook.pytest_report_to_serializable
        outside.tell(kind, json.dumps(hook(config=self._config, report=report), default=str))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        import outside

        outside.tell("running", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._send("report", report)

    def pytest_collectreport(self, report: Any) -> None:
        if not report.passed:
            self._send("collected", report)


def run(ids_json: str) -> None:
    """Run the tests with these ids; the reports leave through the module `outside` of the worker."""
    # A page takes ten times as long for pure Python; its own traps do not need many examples.
    settings.register_profile("page", max_examples=5, stateful_step_count=12, deadline=None)
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
    pytest.main([*options, *files], plugins=[_Reporter(ids)])
