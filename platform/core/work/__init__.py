"""Background work: queues, leases, heartbeats and notifications."""
