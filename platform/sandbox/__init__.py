"""The sandbox: a separate service that runs code written by models in isolated containers.

The service needs only Python, bubblewrap and the modules of this package. It has no database, no secrets and no
network access. The platform calls it through `sandbox.client`; inside each container `sandbox.inside.agent` runs the
code and answers the service.
"""
