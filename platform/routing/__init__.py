"""Upstreams and models: the console pages that connect them, their commands, and updates of their prices."""
