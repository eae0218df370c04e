"""The demo upstream: a chat-completions server that answers by rules, so that the platform works without a real model.

It is deterministic and says that it is a demo. As it simulates an external server, it shares no code with the platform
and is only reached over HTTP. Processing of a request:

    request     JSON → DemoChatRequest, or 400 with the name of the offending parameter
    models      model name → speed and abilities
    rules       table of rules, the first match wins → Reply (with tools, text_values, schema)
    answer      Reply → tokens, cut at a stop sequence or at the token limit → chunks or one completion
    app         HTTP: routes, pace, errors
"""
