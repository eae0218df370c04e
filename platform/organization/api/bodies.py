"""Shared types of the request bodies of the admin API."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

Name = Annotated[str, Field(min_length=1, max_length=120)]
# Ten years; a time too far in the future could not be stored.
ExpiresInSeconds = Annotated[int, Field(ge=1, le=int(timedelta(days=3650).total_seconds()))]
