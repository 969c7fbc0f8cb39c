"""What the measurements of this directory share: programs, tokens, clients, readings, reports and plots."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Failed(SystemExit):
    """The measurement cannot go on. Where nobody handles it, the script ends with its text, which says why."""
