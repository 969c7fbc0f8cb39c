"""Attacks on Postern's own daemons, beside honest clients."""
