# Shortcuts for contributors. Everything but `make up`, `make test` and `make install` needs the environment that
# `make install` creates.
bin := .venv/bin

.PHONY: lock

lock: ## resolve the dependencies of pyproject.toml and export requirements/
	$(bin)/uv lock --quiet
	$(bin)/uv export --quiet --frozen --no-dev --group docs --no-header --no-annotate -o requirements/runtime.txt
	$(bin)/uv export --quiet --frozen --no-header --no-annotate -o requirements/development.txt
