"""Circuit breakers of targets: a target that fails gets no requests for a while, except one probe at a time."""
