"""Conversion of requests to the input of models: context, attachments, prompts, tools and parameters."""
