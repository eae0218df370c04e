"""The choice among targets in simulated time: servers, requests and the platform (`simulation`), limits (`command`)."""
