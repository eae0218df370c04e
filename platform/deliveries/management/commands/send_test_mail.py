"""`manage.py send_test_mail`: check the mail settings."""

import smtplib
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from core.ids import new_id
from deliveries.notifications.mail import sender_domain


class Command(BaseCommand):
    """Sends a mail immediately, without the outbox, and prints the server's error if it fails."""

    help = "Send a mail to an address, to test the mail settings."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("address")

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.EMAIL_HOST:
            raise CommandError("Mail is not configured: set EMAIL_URL or SMTP_HOST (docs/reference/configuration.md).")
        message = EmailMessage(
            subject="Test mail of the Responses Platform",
            body=f"Mail from the platform at {settings.PUBLIC_URL} arrives at this address.\n",
            to=[options["address"]],
            headers={"Message-ID": f"<{new_id('mail')}@{sender_domain()}>"},
        )
        server = f"{settings.EMAIL_HOST}:{settings.EMAIL_PORT}"
        try:
            message.send()
        except (OSError, smtplib.SMTPException, ValueError) as failed:
            raise CommandError(f"{server} did not accept the mail: {failed}") from failed
        self.stdout.write(f"{server} accepted the mail to {options['address']}.")
