"""Conversion of a request into the input of a model: context, attachments, prompts, tools, parameters."""
