"""Commands for operators skip Django's system checks, which examine code only; here they run once for all."""

import pytest
from django.core.management import call_command


@pytest.mark.slow
def test_system_checks_report_nothing() -> None:
    call_command("check", fail_level="INFO")
