"""Installation of packages into an environment of the checkout."""
