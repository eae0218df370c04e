"""Settings for mypy's Django plugin: it sets Django up to know the models, but connects to nothing."""

import os

_NOWHERE = {
    "SECRET_KEY": "types",
    "API_KEY_PEPPER": "types",
    "DATABASE_URL": "postgresql://types@localhost/types",
    "REDIS_URL": "redis://localhost",
}
for _name, _value in _NOWHERE.items():
    os.environ.setdefault(_name, _value)

from server.settings import *  # noqa: E402, F403 - the environment comes first
