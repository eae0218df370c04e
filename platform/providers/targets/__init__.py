"""Models with several targets: the order of the targets, what follows a failure, and continued answers."""
