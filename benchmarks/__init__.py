"""Measures the platform beside its bare upstream and a pass-through proxy; run it with `python -m benchmarks`."""

import sys
from pathlib import Path

# As manage.py does: `platform/` is a source root, and so is the checkout.
for source_root in (Path(__file__).parents[1], Path(__file__).parents[1] / "platform"):
    if str(source_root) not in sys.path:
        sys.path.insert(0, str(source_root))
