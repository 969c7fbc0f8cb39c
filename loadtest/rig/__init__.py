"""The code that the measurements share: programs, tokens, clients, readings, reports and plots."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Failed(SystemExit):
    """The measurement cannot continue. If it is not caught, the script ends with its text, the reason."""
