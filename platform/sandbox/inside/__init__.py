"""Programs that run inside containers.

Each file is copied into the container separately, so none of them may import another module of the platform.
"""
