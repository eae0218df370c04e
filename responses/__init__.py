"""Inference: the Responses API, its runs and streams, stored chat completions, and endpoints that need no run."""
