"""Adapters to upstreams, each an implementation of the engine's `LanguageModel` port."""
