"""`manage.py send_test_mail`, as a process with the variables of an operator."""

import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import self_signed
from tests.support.management import manage
from tests.support.sampling import rest_at_night
from tests.support.smtp_server import running_smtp_server


def run(**variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the command."""
    return manage("send_test_mail", "me@example.com", **variables)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_the_mail_arrives_or_the_answer_of_the_server_is_printed() -> None:
    with running_smtp_server() as server:
        server.password = "p/w"
        variables = {"MAIL_FROM": "platform@example.com", "PUBLIC_URL": "https://platform.example.com"}
        parts = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(server.port), "SMTP_SECURITY": "none"}
        sent = run(**variables, **parts, SMTP_USER="platform", SMTP_PASSWORD="p/w")
        assert (sent.returncode, sent.stderr) == (0, "")
        assert sent.stdout == f"127.0.0.1:{server.port} accepted the mail to me@example.com.\n"
        (mail,) = server.messages
        assert (mail["to"], mail["from"]) == ("me@example.com", "platform@example.com")
        assert "https://platform.example.com" in mail.get_content()
        failed = run(**variables, EMAIL_URL=f"smtp://platform:wrong@127.0.0.1:{server.port}")
        assert failed.returncode == 1
        assert "did not accept the mail" in failed.stderr
        assert "wrong password" in failed.stderr
    assert "Mail is not configured: set EMAIL_URL or SMTP_HOST" in run().stderr
    assert "MAIL_FROM is not set" in run(EMAIL_URL="smtp://127.0.0.1").stderr


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("scheme", rest_at_night(["smtp+starttls", "smtps"], first=1))
def test_certificates_of_mail_servers_are_verified(scheme: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with running_smtp_server(tls=context if scheme == "smtps" else None) as server:
        server.starttls, server.password = context, "p/w"
        url = f"{scheme}://platform:p%2Fw@localhost:{server.port}"
        unknown = run(EMAIL_URL=url, MAIL_FROM="platform@example.com")
        assert "certificate verify failed" in unknown.stderr
        known = run(EMAIL_URL=url, MAIL_FROM="platform@example.com", SSL_CERT_FILE=str(certificate))
        assert (known.returncode, known.stderr) == (0, "")
        assert len(server.messages) == 1
