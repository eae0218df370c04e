"""`manage.py audit_check`: whether the audit log is what was written."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from typing_extensions import override

from tenants import audit_seals
from tenants.models import AuditSeal


class Command(BaseCommand):
    """Seals what has settled, then checks every seal of the audit log."""

    help = "Check the seals of the audit log; ends with 1 where a line was changed or removed."

    @override
    def handle(self, *args: Any, **options: Any) -> None:
        audit_seals.seal_pending_lines()
        broken = list(audit_seals.verify())
        for each in broken:
            span = f"lines {each.seal.first_id} to {each.seal.last_id}"
            self.stderr.write(f"Seal {each.seal.pk} ({span}, {each.seal.sealed_at:%Y-%m-%d %H:%M} UTC): {each.why}.")
        if broken:
            message = f"{len(broken)} of {AuditSeal.objects.count()} seals do not hold."
            raise CommandError(message)
        last = AuditSeal.objects.order_by("-pk").first()
        told = f"{AuditSeal.objects.count()} seals hold; the last is {last.digest}." if last else "There are no seals."
        self.stdout.write(told)
