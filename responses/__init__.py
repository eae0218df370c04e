"""Doing inference: the loop, the stream, the API of responses and chat completions."""
