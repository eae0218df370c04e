"""The sandbox: a service of its own that runs what models write, in namespaces that can reach nothing.

It needs Python, bubblewrap and the modules of this folder, and has neither a database nor secrets nor a network. The
platform talks to it by `sandbox.client`, and it talks to whoever runs inside by `sandbox.inside.agent`.
"""
