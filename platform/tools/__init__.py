"""Hosted tools, one folder per kind. The setting `HOSTED_TOOLS` names their plug-ins."""
