"""Helper programs of the launcher run detached from its terminal."""

import os
import sys
from pathlib import Path

from launcher import home


def test_ctrl_c_does_not_reach_a_helper_program(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.getsid(0), os.getpgid(0))"]
    done = home.run_as(argv, account=None, directory=tmp_path)
    session, group = map(int, done.stdout.split())
    assert (session, group) == (group, session)
    assert session != os.getsid(0)
