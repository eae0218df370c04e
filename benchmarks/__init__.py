"""Benchmark of the platform against its bare upstream and a pass-through proxy: `python -m benchmarks`."""

import sys
from pathlib import Path

# Like manage.py: `platform/` and the checkout are source roots.
for source_root in (Path(__file__).parents[1], Path(__file__).parents[1] / "platform"):
    if str(source_root) not in sys.path:
        sys.path.insert(0, str(source_root))
