# make demo and make test do all set-up themselves, on a fresh Debian machine too.
python := .venv/bin/python
in_page := $(python) -m pytest -p tests.web.in_browser --in-browser

.PHONY: help demo test test-native test-in-browser test-web check bench serve setup clean

help:
	@echo 'make demo    a real model on WebGPU: generated, killed, resumed, compared'
	@echo 'make test    the test suite, natively and inside Chromium'
	@echo 'make test-web  the suites inside Chromium, and the page: crashes, tabs, troubles (minutes)'
	@echo 'make check   ruff and mypy'
	@echo 'make bench   speed, as ratios measured side by side'
	@echo 'make serve   the chat page on http://localhost:8000'
	@echo 'make clean   remove .venv and caches (not your sessions)'

demo: setup
	@$(python) -m webkv demo

test: setup test-native test-in-browser

test-native:
	@$(python) -m pytest -n 2 --dist worksteal --ignore tests/web

# The same tests inside Chromium, on a page's own Python and WebGPU; those that take long first.
test-in-browser:
	@.ci/setup venv browser
	@$(in_page) tests/cache tests/kernels tests/checkpoint tests/gpu

test-web: setup test-in-browser
	@$(in_page) tests/models tests/layout
	@$(python) -m pytest -n 2 --dist loadfile tests/web

check:
	@.ci/setup venv
	@$(python) -m ruff check .
	@$(python) -m mypy webkv

bench: setup
	@$(python) -m benchmarks

serve: setup
	@$(python) -m webkv serve

setup:
	@.ci/setup venv vulkan smollm2

clean:
	rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
