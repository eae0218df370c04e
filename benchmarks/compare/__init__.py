"""The platform and other servers for the Responses API under the same load."""
