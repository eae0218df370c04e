"""The transactional outbox: deliveries are inserted in the transaction of their event, and sent by workers.

Webhooks and mails are its two channels. They share the rows' base (`tenants.models.notifications.Delivery`), the
worker, its leases and the schedule of retries; each defines how its due deliveries are claimed and how one is sent.
"""
