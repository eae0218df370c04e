"""What is sent to others: the outbox with its attempts, and the mails to members of teams."""
