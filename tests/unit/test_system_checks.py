"""Commands for operators skip Django's system checks, which examine code only; here they run once for all."""

from django.core.management import call_command


def test_system_checks_report_nothing() -> None:
    call_command("check", fail_level="INFO")
