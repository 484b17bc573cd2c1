"""A pytest plugin: run the collected tests inside Pyodide in Chromium instead of here.

    python -m pytest -p tests.web.in_browser --in-browser tests/gpu tests/kernels

The tests are collected here as ever; one browser runs them all, and its reports are ordinary results.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.web.chromium import browser, executable, served
from webkv.serve import Pages
from webkv.site import PYODIDE, prepare

# Packages without a build for Pyodide; a test file that needs one is skipped in the page.
_NATIVE_ONLY = re.compile(r"No module named '(gguf|tokenizers|rich|obstore|safetensors|sqlite3)'")
ROOT = Path(__file__).resolve().parent.parent.parent


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("browser")
    group.addoption("--in-browser", action="store_true", help="run the tests inside Pyodide in Chromium")
    group.addoption("--browsers", type=int, default=2, metavar="N", help="how many at a time (2)")
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
    """Turns what the pages send into reports of the session's items."""

    def __init__(self, session: Any) -> None:
        self._config = session.config
        self.open = {item.nodeid: item for item in session.items}
        self._whole: dict[str, Any] = {}

    def revived(self, text: str) -> Any:
        """A report as the page made it."""
        hook = self._config.hook.pytest_report_from_serializable
        report = hook(config=self._config, data=json.loads(text))
        if report.skipped and isinstance(report.longrepr, list):  # JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        return report

    def collected(self, report: Any) -> None:
        """A file that was skipped or failed as a whole."""
        self._whole[report.nodeid] = report

    def ran(self, report: Any) -> None:
        """A test's setup, call or teardown."""
        item = self.open[report.nodeid]
        if report.when == "setup":
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        item.ihook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            del self.open[report.nodeid]

    def account(self, ids: list[str], why: str) -> None:
        """Report the tests that a page did not run: their file was skipped there, or the page died."""
        for item in [self.open[test] for test in ids if test in self.open]:
            whole = self._whole.get(item.nodeid.split("::")[0])
            lacking = _NATIVE_ONLY.search(str(whole.longrepr)) if whole is not None else None
            if whole is not None and whole.skipped:
                outcome, text = "skipped", whole.longrepr
            elif lacking is not None:
                outcome, text = "skipped", (str(item.path), 0, f"Skipped: a page has no {lacking[1]}")
            else:
                outcome, text = "failed", f"not run in the browser: {(whole and whole.longrepr) or why}"
                why = "as above"
            when = "call" if outcome == "failed" else "setup"
            report = pytest.TestReport(item.nodeid, item.location, {}, outcome, text, when)
            item.ihook.pytest_runtest_logreport(report=report)


class _Run:
    """One page's share of the tests, and what became of the page."""

    def __init__(self, results: _Results, ids: list[str]) -> None:
        self.results = results
        self.ids = ids
        self.ended = asyncio.Event()
        self.death = ""
        self.running = "the start"
        self.output: list[str] = []

    def told(self, kind: str, text: str) -> None:
        """One message of the page."""
        if kind == "report":
            self.results.ran(self.results.revived(text))
        elif kind == "collected":
            self.results.collected(self.results.revived(text))
        elif kind == "running":
            self.running = text
        elif kind == "output":
            self.output.append(text)
        else:
            self.death = text
            self.ended.set()

    async def drive(self, root: str, limit: float) -> None:
        """Open a browser of its own, run the tests, and account for each of them."""
        with tempfile.TemporaryDirectory() as profile:
            async with browser(Path(profile)) as context:
                page = await context.new_page()
                page.on("crash", lambda _: self.told("died", f"the page crashed at {self.running}"))
                page.on("pageerror", lambda error: self.told("died", str(error)))
                await page.expose_function("told", self.told)
                await page.goto(f"{root}harness/harness.html")
                await page.evaluate("ids => start(ids)", self.ids)
                try:
                    await asyncio.wait_for(self.ended.wait(), limit)
                except TimeoutError:
                    self.death = f"no end after {limit:.0f} s; it was at {self.running}"
        self.results.account(self.ids, self.death or "".join(self.output)[-2000:])


def shares(ids: list[str], count: int) -> list[list[str]]:
    """`count` lists of about as many tests; a file's tests stay together, in order."""
    files: dict[str, list[str]] = {}
    for test in ids:
        files.setdefault(test.split("::")[0], []).append(test)
    lists: list[list[str]] = [[] for _ in range(count)]
    for tests in sorted(files.values(), key=len, reverse=True):
        min(lists, key=len).extend(tests)
    return [share for share in lists if share]


async def _drive(session: Any, results: _Results) -> None:
    option = session.config.getoption
    site = prepare(lambda line: print(line, file=sys.stderr), tests=True, version=option("--pyodide"))
    pages = Pages(site)
    pages.folders["harness"] = ROOT / "tests" / "web"
    pages.made["tests.zip"] = zipped_tests()
    runs = [_Run(results, ids) for ids in shares(list(results.open), option("--browsers"))]
    with served(pages) as root:
        await asyncio.gather(*(run.drive(root, option("--in-browser-timeout")) for run in runs))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> bool | None:
    if not session.config.getoption("--in-browser") or session.config.option.collectonly:
        return None
    if not executable():
        raise pytest.UsageError("--in-browser needs Chromium; install it, or name it in $WEBKV_CHROMIUM")
    asyncio.run(_drive(session, _Results(session)))
    return True
