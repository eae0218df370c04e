"""The schema snapshot belongs to the migrations of the same commit."""

from server.database import schema_snapshot


def test_the_snapshot_was_written_after_the_latest_change_of_a_migration() -> None:
    assert schema_snapshot.fingerprint() in schema_snapshot.PATH.read_text(), f"Run `{schema_snapshot.COMMAND}`."
