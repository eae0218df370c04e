"""Django's system checks, which the commands skip because they examine only code."""

import pytest
from django.core.management import call_command


@pytest.mark.slow
def test_system_checks_report_nothing() -> None:
    call_command("check", fail_level="INFO")
