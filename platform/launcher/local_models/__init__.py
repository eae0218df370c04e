"""Models on this machine: files that llama.cpp serves, and servers that run already."""
