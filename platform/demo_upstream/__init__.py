"""The demo upstream: a chat-completions server that answers by rules, so that the platform works without a real model.

It is deterministic, honest about being a demo, and fails on request. It stands for a foreign server, so it shares no
code with the platform and speaks to it over HTTP only. The way of one request:

    request     JSON → ChatRequest, or 400 with the name of the offending parameter
    models      the model's name → how fast it speaks, whether it reasons, which fault it has
    rules       a table, first match wins → Reply (tools, clues, schema, arithmetic and facts help)
    generation  Reply → pieces (one piece is one token), cut at a stop sequence or at the token limit
    stream      pieces → chunks or one completion
    faults      chunks or completion → steps: send these bytes, wait, hang, cut
    delivery    steps → the socket
"""
