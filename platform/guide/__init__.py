"""The documentation site: built by MkDocs from docs/, served below /docs/guide/."""
