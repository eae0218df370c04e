"""The transactional outbox: deliveries are inserted in the transaction of their event, and sent by workers.

Webhooks and mails are its two channels. They share the base class of the rows
(`tenants.models.notifications.Delivery`), the worker, its leases and the schedule of retries. Each channel defines how
its due deliveries are claimed and how a delivery is sent.
"""
