# make demo and make test do all set-up themselves, on a fresh Debian machine too.
python := .venv/bin/python

.PHONY: help demo test check bench serve setup clean

help:
	@echo 'make demo    a real model on WebGPU: generated, killed, resumed, compared'
	@echo 'make test    the whole test suite'
	@echo 'make check   ruff and mypy'
	@echo 'make bench   speed, as ratios measured side by side'
	@echo 'make serve   the chat page on http://localhost:8000'
	@echo 'make clean   remove .venv and caches (not your sessions)'

demo: setup
	@$(python) -m webkv demo

test: setup
	@$(python) -m pytest

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
