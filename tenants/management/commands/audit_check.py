"""`manage.py audit_check`: verify that the audit log was not tampered with."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from tenants import audit_seals
from tenants.models import AuditSeal


class Command(BaseCommand):
    """Seals settled lines, then checks every seal of the audit log."""

    help = "Check the seals of the audit log. Exits with status 1 if a line was changed or removed."
    requires_system_checks = ()  # they import the whole console, which takes three seconds

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        audit_seals.seal_pending_lines()
        broken = list(audit_seals.verify())
        for seal, reason in broken:
            span = f"lines {seal.first_id} to {seal.last_id}"
            self.stderr.write(f"Seal {seal.pk} ({span}, {seal.sealed_at:%Y-%m-%d %H:%M} UTC): {reason}.")
        if broken:
            raise CommandError(f"{len(broken)} of {AuditSeal.objects.count()} seals do not match.")
        last = AuditSeal.objects.order_by("-pk").first()
        # Operators note the last digest elsewhere: it proves later that the chain was not rewritten as a whole.
        count = AuditSeal.objects.count()
        self.stdout.write(f"{count} seals match. The last one is {last.digest}." if last else "There are no seals yet.")
