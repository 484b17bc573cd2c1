"""A pytest plugin: run the collected tests inside Pyodide in Chromium instead of here.

    python -m pytest -p tests.web.in_browser --in-browser tests/gpu tests/kernels

The tests are collected here as ever; one browser runs them all, and its reports are ordinary results.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.web.chromium import browser, executable, served
from webkv.serve import Pages
from webkv.site import PYODIDE, prepare

ROOT = Path(__file__).resolve().parent.parent.parent


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("browser")
    group.addoption("--in-browser", action="store_true", help="run the tests inside Pyodide in Chromium")
    group.addoption("--pyodide", default=PYODIDE, metavar="VERSION", help=f"its version ({PYODIDE})")
    group.addoption(
        "--in-browser-timeout", type=float, default=3000, metavar="S", help="for the whole run (3000)"
    )


def zipped_tests() -> bytes:
    """The test files and their settings, as the page unpacks them."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.write(ROOT / "pyproject.toml", "pyproject.toml")
        for file in sorted((ROOT / "tests").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                opened.write(file, str(file.relative_to(ROOT)))
    return made.getvalue()


class _Results:
    """Turns what the page sends into reports of the session's items."""

    def __init__(self, session: Any) -> None:
        self._config = session.config
        self._open = {item.nodeid: item for item in session.items}
        self._skipped: dict[str, Any] = {}
        self.ended = asyncio.Event()
        self.death = ""
        self.running = "the start"
        self._output: list[str] = []

    def told(self, kind: str, text: str) -> None:
        """One message of the page."""
        if kind == "report":
            self._report(self._revived(text))
        elif kind == "collected":
            report = self._revived(text)
            self._skipped[report.nodeid] = report
        elif kind == "running":
            self.running = text
        elif kind == "output":
            self._output.append(text)
        else:
            self.death = text
            self.ended.set()

    def _revived(self, text: str) -> Any:
        hook = self._config.hook.pytest_report_from_serializable
        report = hook(config=self._config, data=json.loads(text))
        if report.skipped and isinstance(report.longrepr, list):  # JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        return report

    def _report(self, report: Any) -> None:
        item = self._open[report.nodeid]
        if report.when == "setup":
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            del self._open[report.nodeid]

    def finish(self) -> None:
        """Account for every test the page did not run: its file was skipped there, or the page died."""
        why = self.death or "".join(self._output)[-2000:]
        for item in list(self._open.values()):
            whole = self._skipped.get(item.nodeid.split("::")[0])
            if whole is not None and whole.skipped:
                outcome, text = "skipped", whole.longrepr
            else:
                outcome, text = "failed", f"not run in the browser: {(whole and whole.longrepr) or why}"
                why = "as above"
            item.ihook.pytest_runtest_logreport(
                report=pytest.TestReport(
                    item.nodeid, item.location, {}, outcome, text, "call" if outcome == "failed" else "setup"
                )
            )


async def _drive(session: Any, results: _Results) -> None:
    version = session.config.getoption("--pyodide")
    pages = Pages(prepare(lambda line: print(line, file=sys.stderr), tests=True, version=version))
    pages.folders["harness"] = ROOT / "tests" / "web"
    pages.made["tests.zip"] = zipped_tests()
    ids = [item.nodeid for item in session.items]
    with served(pages) as root, tempfile.TemporaryDirectory() as profile:
        async with browser(Path(profile)) as context:
            page = await context.new_page()
            page.on("crash", lambda _: results.told("died", "the page crashed"))
            page.on("pageerror", lambda error: results.told("died", str(error)))
            await page.expose_function("told", results.told)
            await page.goto(f"{root}harness/harness.html")
            await page.evaluate("ids => start(ids)", ids)
            limit = session.config.getoption("--in-browser-timeout")
            try:
                await asyncio.wait_for(results.ended.wait(), limit)
            except TimeoutError:
                results.death = f"no end after {limit:.0f} s; it was at {results.running}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> bool | None:
    if not session.config.getoption("--in-browser") or session.config.option.collectonly:
        return None
    if not executable():
        raise pytest.UsageError("--in-browser needs Chromium; install it, or name it in $WEBKV_CHROMIUM")
    results = _Results(session)
    asyncio.run(_drive(session, results))
    results.finish()
    return True
