# Shortcuts for contributors; `make` lists them. `make install` comes first: the others use its environment.
bin := .venv/bin

.PHONY: help install up test slow lint format types docs lock development

# Says how to install what the other targets use, if it is missing.
development:
	@PYTHONPATH=platform $$(command -v $(bin)/python || echo python3) -m launcher.installation.development

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

install: ## create .venv with everything for running and development
	python3 manage.py install --dev

up: ## start the platform
	python3 manage.py up

test: ## run the tests, except the slow ones
	python3 manage.py test

slow: ## run the slow tests
	python3 manage.py test -m slow

lint: development ## check style, layers, dependencies and the files in .github
	$(bin)/prek run --all-files

format: development ## format the Python code, and correct what ruff can
	$(bin)/ruff check --quiet --fix .
	$(bin)/ruff format --quiet .

types: development ## check the types
	$(bin)/mypy

docs: ## show the documentation on port 8001, and update it as its files change
	PYTHONPATH=platform:. $(bin)/mkdocs serve --dev-addr 127.0.0.1:8001

lock: development ## resolve the dependencies of pyproject.toml and export requirements/
	$(bin)/uv lock --quiet
	$(bin)/uv export --quiet --frozen --no-dev --group docs --no-header --no-annotate -o requirements/runtime.txt
	$(bin)/uv export --quiet --frozen --no-header --no-annotate -o requirements/development.txt
	$(bin)/uv export --quiet --frozen --only-group telemetry --no-header --no-annotate -o requirements/telemetry.txt
	$(bin)/uv export --quiet --frozen --only-group llama --no-header --no-annotate -o requirements/llama.txt
	$(bin)/uv export --quiet --frozen --only-group smollm2 --no-header --no-annotate -o requirements/smollm2.txt
