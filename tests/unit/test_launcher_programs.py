"""Short programs that the launcher asks something run apart from the terminal that started it."""

import os
import sys
from pathlib import Path

from launcher import accounts


def test_ctrl_c_at_the_terminal_does_not_reach_a_program_that_is_asked(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.getsid(0), os.getpgid(0))"]
    done = accounts.run(argv, account=None, directory=tmp_path)
    session, group = map(int, done.stdout.split())
    assert (session, group) == (group, session)
    assert session != os.getsid(0)
