"""A pytest plugin: run the collected tests inside Pyodide in Chromium instead of here.

    python -m pytest -p tests.web.in_browser --in-browser tests/gpu tests/kernels

The tests are collected here as ever.  Pages in browsers of their own take file after file and run them;
their reports are ordinary results.
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
        "--in-browser-timeout", type=float, default=300, metavar="S", help="for one test, or the start (300)"
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
    """Deals out the session's files, and turns what the pages send into reports of its items."""

    def __init__(self, session: Any) -> None:
        self._config = session.config
        self.open = {item.nodeid: item for item in session.items}
        self.files: dict[str, list[str]] = {}
        for test in self.open:
            self.files.setdefault(file_of(test), []).append(test)
        self._left = list(reversed(self.files))
        self._whole: dict[str, Any] = {}

    def take(self) -> str:
        """The next file to run, in the order of collection; empty when none is left."""
        return self._left.pop() if self._left else ""

    def revived(self, data: Any) -> Any:
        """A report as the page made it."""
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
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
        """Report the tests that no page ran: their file was skipped there, or a page died."""
        for item in [self.open.pop(test) for test in ids if test in self.open]:
            whole = self._whole.get(file_of(item.nodeid))
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


class _Page:
    """A page that runs files of the tests, and what became of it."""

    def __init__(self, results: _Results) -> None:
        self.results = results
        self.heard = asyncio.Event()
        self.ended = False
        self.death = ""
        self.file = ""
        self.running = "the start"
        self.output = ""

    def take(self) -> str:
        """What to run next."""
        self.file = self.results.take()
        return self.file

    def told(self, kind: str, text: str) -> None:
        """One message of the page."""
        self.heard.set()
        if kind == "ran":
            self.running, reports = json.loads(text)
            for report in reports:
                self.results.ran(self.results.revived(report))
        elif kind == "collected":
            self.results.collected(self.results.revived(json.loads(text)))
        elif kind == "output":
            self.output = text
        else:
            self.ended, self.death = True, text and f"the page died at {self.running}: {text}"

    async def drive(self, root: str, limit: float) -> None:
        """Open a browser of its own and run files until none is left; account for the one it died at."""
        with tempfile.TemporaryDirectory() as profile:
            async with browser(Path(profile)) as context:
                page = await context.new_page()
                page.on("crash", lambda _: self.told("died", "it crashed"))
                page.on("pageerror", lambda error: self.told("died", str(error)))
                await page.expose_function("told", self.told)
                await page.expose_function("take", self.take)
                await page.goto(f"{root}harness/harness.html")
                await page.evaluate("ids => start(ids)", list(self.results.open))
                while not self.ended:
                    self.heard.clear()
                    try:
                        await asyncio.wait_for(self.heard.wait(), limit)
                    except TimeoutError:
                        self.told("died", f"nothing was heard for {limit:.0f} s")
        if self.death:
            self.results.account(self.results.files.get(self.file, []), f"{self.death}\n{self.output}")


def file_of(test: str) -> str:
    """The file of a test's id."""
    return test.split("::")[0]


async def _drive(session: Any, results: _Results) -> None:
    option = session.config.getoption
    site = prepare(lambda line: print(line, file=sys.stderr), tests=True, version=option("--pyodide"))
    served_pages = Pages(site)
    served_pages.folders["harness"] = ROOT / "tests" / "web"
    served_pages.made["tests.zip"] = zipped_tests()
    pages = [_Page(results) for _ in range(min(option("--browsers"), len(results.files)))]
    with served(served_pages) as root:
        await asyncio.gather(*(page.drive(root, option("--in-browser-timeout")) for page in pages))
    results.account(list(results.open), "\n".join(page.death + page.output for page in pages))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> bool | None:
    if not session.config.getoption("--in-browser") or session.config.option.collectonly:
        return None
    if not executable():
        raise pytest.UsageError("--in-browser needs Chromium; install it, or name it in $WEBKV_CHROMIUM")
    asyncio.run(_drive(session, _Results(session)))
    return True
