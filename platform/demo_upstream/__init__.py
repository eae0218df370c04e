"""The demo upstream: a chat-completions server that answers by rules, so that the platform works without a real model.

It is deterministic, says that it is a demo, and fails on request. As it simulates an external server, it shares no code
with the platform and is only reached over HTTP. Processing of a request:

    request     JSON → ChatRequest, or 400 with the name of the offending parameter
    models      model name → speed, reasoning, fault
    rules       table of rules, the first match wins → Reply (with tools, text_values, schema, arithmetic, facts)
    generation  Reply → tokens, cut at a stop sequence or at the token limit
    stream      tokens → chunks or one completion
    faults      chunks or completion → steps: send bytes, wait, hang, close the connection
    delivery    steps → socket
"""
